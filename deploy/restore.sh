#!/bin/sh
# Puts both databases that backup.sh wrote in place of those that are there: sh restore.sh FOLDER
#
# An old database stays until all of the new one is there. Set IN as for backup.sh.
set -eu
folder=${1:?name the folder that backup.sh wrote: sh restore.sh FOLDER}
in=${IN:-docker compose exec -T postgres}
user=${PGUSER:-dreamshard}

ask() {
    $in psql --username "$user" --dbname postgres --quiet --no-align --tuples-only --set ON_ERROR_STOP=1 \
        --command "set client_min_messages = warning" --command "$1"
}

for database in mlflow prefect; do
    if [ ! -s "$folder/$database.dump" ]; then
        echo "there is no $folder/$database.dump, so nothing was restored; name a folder that backup.sh wrote" >&2
        exit 1
    fi
done
users=$(ask "select count(*) from pg_stat_activity where datname in ('mlflow', 'prefect')")
if [ "$users" -gt 0 ]; then
    echo "$users connections use the databases, so their servers would go on with what is replaced; stop them first:" \
        "docker compose stop prefect mlflow" >&2
    exit 1
fi
for database in mlflow prefect; do
    ask "drop database if exists ${database}_restored" # of a restore that was interrupted
    $in createdb --username "$user" --template template0 "${database}_restored"
    $in pg_restore --username "$user" --dbname "${database}_restored" --no-owner --exit-on-error --single-transaction \
        < "$folder/$database.dump" || {
        echo "$folder/$database.dump cannot be restored, so both databases stay as they were; name another backup" >&2
        exit 1
    }
done
for database in mlflow prefect; do
    ask "drop database if exists $database"
    ask "alter database ${database}_restored rename to $database"
    echo "restored $database"
done
