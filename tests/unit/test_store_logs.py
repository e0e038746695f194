import logging

from mbt_cli.core.secrets import hold
from mbt_cli.store.logs import logging_to


def test_log_lines_arguments_and_tracebacks_are_masked(tmp_path):
    logger = logging.getLogger("mbt_cli.store.test")
    hold({"OPENAI_API_KEY": "sk-proj-12345678"})

    with logging_to(tmp_path) as path:
        logger.info("with %s", "sk-proj-12345678")
        try:
            raise ValueError("sk-proj-12345678")
        except ValueError:
            logger.exception("no")

    text = path.read_text()
    assert "with [secret]" in text
    assert "ValueError: [secret]" in text
    assert "sk-proj-12345678" not in text


def test_nothing_is_logged_to_the_file_afterwards(tmp_path):
    with logging_to(tmp_path) as path:
        pass
    logging.getLogger("mbt_cli").warning("later")

    assert path.read_text() == ""
