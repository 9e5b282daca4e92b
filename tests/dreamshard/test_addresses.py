"""Which addresses hold a secret."""

import pytest

from dreamshard.addresses import check


@pytest.mark.parametrize(
    "text",
    [
        "http://bob:hidden@127.0.0.1:48123/ok.csv",
        "http:/bob:hidden@127.0.0.1:48123/ok.csv",
        "https://hidden@host/ok.csv",
        "https://:hidden@host/ok.csv",
        "s3://AKIA:hid/den@bucket/x.csv",
        "s3://AKIA:hid@den@bucket/x.csv",
        "simplecache::s3://AKIA:hidden@bucket/x.csv",
        "abfs://container:hidden@account/x.csv",
        "emulated:http://bob:hidden@host/h100.yaml",
        "http://host/ok.csv?X-Amz-Signature=hidden",
        "https://account.blob.core.windows.net/c/ok.csv?sig=hidden&se=2026",
        "zip://a.csv::https://host/a.zip?hidden",
        "see http://host/ok.csv and\nhttp://bob:hidden@host/ok.csv",
        "a100:8,http://bob:hidden@host/own.yaml:64",
    ],
)
def test_an_address_with_a_secret_is_refused_in_a_sentence_that_does_not_show_it(text: str):
    with pytest.raises(ValueError, match=r"^--source has an address with a .*docs/team.md") as refused:
        check(text, "--source")
    assert "hid" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mlperf-dlrm-dcnv2",
        "/data/ada@home/tables.csv",
        "/models/model.py:make_model",
        "package.model:make",
        "s3://bucket/tables/ada@home/what:ever.csv",
        "http://127.0.0.1:48123/ok.csv",
        "http://[::1]:48123/ok.csv",
        "hdfs://host:8020",
        "abfs://container@account.dfs.core.windows.net/tables.csv",
        "github://owner:repository@main/tables.csv",
        "simplecache::s3://bucket/x.csv",
        "file:///data/tables.csv",
        "a100:8,my.yaml:64",
        "ray:ray://host:10001",
        "emulated:/hardware/ours.yaml",
        "is it http://host/x.csv?",
    ],
)
def test_other_texts_are_taken(text: str):
    check(text, "--source")
