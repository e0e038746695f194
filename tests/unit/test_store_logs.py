import logging

import pytest

from mbt_cli.store.logs import Secrets, logging_to

ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-proj-12345678",
    "HF_TOKEN": "hf_abcdefgh",
    "DB_PASSWORD": "p@ss word!",
    "TOKENIZERS_PARALLELISM": "disabled",
    "SOME_TOKEN": "true",
    "PATH": "/usr/bin",
}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key sk-proj-12345678 used", "key *** used"),
        ("hf_abcdefgh/sk-proj-12345678", "***/***"),
        ("postgres://p%40ss%20word%21@host", "postgres://***@host"),
        ("disabled true /usr/bin", "disabled true /usr/bin"),
    ],
)
def test_values_of_secret_variables_are_masked_and_others_are_not(text, masked):
    assert Secrets(ENVIRONMENT).mask(text) == masked


def test_a_secret_that_holds_another_is_masked_whole():
    secrets = Secrets({"A_KEY": "abcdef", "B_KEY": "abcdef-ghijkl"})

    assert secrets.mask("abcdef-ghijkl") == "***"


def test_log_lines_arguments_and_tracebacks_are_masked(tmp_path):
    secrets = Secrets()
    secrets.add("random-server-key")
    logger = logging.getLogger("mbt_cli.store.test")

    with logging_to(tmp_path, {}, secrets=secrets) as path:
        logger.info("with %s", "random-server-key")
        try:
            raise ValueError("random-server-key")
        except ValueError:
            logger.exception("no")

    text = path.read_text()
    assert "with ***" in text
    assert "ValueError: ***" in text
    assert "random-server-key" not in text


def test_nothing_is_logged_to_the_file_afterwards(tmp_path):
    with logging_to(tmp_path, ENVIRONMENT) as path:
        pass
    logging.getLogger("mbt_cli").warning("later")

    assert path.read_text() == ""


def test_a_finished_server_log_is_masked_in_place_and_keeps_odd_bytes(tmp_path):
    path = tmp_path / "x.server.log"
    path.write_bytes(b"--api-key hf_abcdefgh \xff\n")

    Secrets(ENVIRONMENT).mask_file(path)

    assert path.read_bytes() == b"--api-key *** \xff\n"
