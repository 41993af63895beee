"""Options that say how Spark's processes connect: they name secrets, and pickles of options contain none."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import ClientConfig, Tls, TokenEnv, TokenFile, UsageError
from aio_client._transport.tokens import token_source
from spark_bridge.connect_options import ConnectOptions
from spark_bridge.options import ReadOptions
from spark_bridge.write_options import WriteOptions
from spark_bridge.writing import WriteJob

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t-Xq7"


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ({}, ConnectOptions()),
        ({"profile": "prod"}, ConnectOptions(profile="prod")),
        ({"token_file": "/t"}, ConnectOptions(token=TokenFile("/t"))),
        ({"tokenEnv": "T", "tls": "TRUE"}, ConnectOptions(token=TokenEnv("T"), tls=True)),
        ({"tls": "false"}, ConnectOptions(tls=False)),
        (
            {"tls_ca": "/a", "tls_certificate": "/c", "tlsKey": "/k", "tls_server_name": "db"},
            ConnectOptions(tls=Tls(ca="/a", certificate="/c", key="/k", server_name="db")),
        ),
    ],
)
def test_options_are_parsed_for_reads_and_writes(texts: dict[str, str], options: ConnectOptions) -> None:
    assert ReadOptions.parse({"table": "a.b", **texts}).connect == options
    assert WriteOptions.parse({"table": "a.b", **texts}).connect == options
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"token": SECRET}, 'no option "token": Spark shows and stores options'),
        ({"Bearer_Token": SECRET}, "use option token_file, token_env or profile"),
        ({"token_env": f"{SECRET}"}, "give the name of the variable, not the token"),
        ({"token_env": "T", "token_file": "/t"}, "token_file cannot be combined with token_env"),
        ({"tls": "yes"}, "option tls must be true or false, not 'yes'"),
        ({"tls": ""}, "option tls must be true or false"),
        ({"tls": "false", "tls_ca": "/a"}, "option tls cannot be false with option tls_ca"),
        ({"tls_key": "/k"}, "a key without its certificate"),
    ],
)
def test_a_wrong_option_is_refused_without_showing_a_token(texts: dict[str, str], message: str) -> None:
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(UsageError, match=message) as caught:
            parse({"table": "a.b", **texts})
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"token": SECRET},
        {"token": lambda: SECRET},
        {"tls": Tls(certificate="/c", key=b"-----BEGIN PRIVATE KEY-----\n")},
    ],
)
def test_a_secret_by_value_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is not pickled"):
        ConnectOptions(token=token_source(options.get("token")), tls=options.get("tls"))


def test_the_description_of_a_job_names_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    options = WriteOptions.parse({"table": "a.b", "token_file": str(file)})
    job = WriteJob(config=ClientConfig(token=TokenFile(file)), options=options, replaces=False)
    pickled = pickle.dumps(job)
    assert SECRET.encode() not in pickled
    assert str(file).encode() in pickled
    assert pickle.loads(pickled) == job
