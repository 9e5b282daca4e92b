#!/bin/sh
# Writes both databases of a team, whose servers may run meanwhile, into a folder: sh backup.sh FOLDER
#
# PostgreSQL's programs run in the compose file's container; set IN to other words before them, for example to `env` where
# PGHOST and PGPASSWORD name a server and its password.
set -eu
umask 077 # everyone's runs, and what Prefect's blocks hold
folder=${1:?name the folder to write: sh backup.sh FOLDER}
in=${IN:-docker compose exec -T postgres}
user=${PGUSER:-dreamshard}
mkdir -p "$folder"
for database in mlflow prefect; do
    file=$folder/$database.dump
    $in pg_dump --username "$user" --format custom "$database" > "$file.tmp"
    $in pg_restore --list < "$file.tmp" > /dev/null # fails if the file is not whole
    mv "$file.tmp" "$file"
    echo "wrote $file ($(wc -c < "$file") bytes)"
done
