import pytest

from mbt_cli.core.secrets import Secrets

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
        ("key sk-proj-12345678 used", "key [secret] used"),
        ("hf_abcdefgh/sk-proj-12345678", "[secret]/[secret]"),
        ("postgres://p%40ss%20word%21@host", "postgres://[secret]@host"),
        ("disabled true /usr/bin", "disabled true /usr/bin"),
    ],
)
def test_values_of_secret_variables_are_masked_and_others_are_not(text, masked):
    assert Secrets(ENVIRONMENT).mask(text) == masked


def test_a_secret_that_holds_another_is_masked_whole():
    secrets = Secrets({"A_KEY": "abcdef", "B_KEY": "abcdef-ghijkl"})

    assert secrets.mask("abcdef-ghijkl") == "[secret]"


def test_each_line_of_a_key_of_several_lines_is_masked():
    key = "-----BEGIN KEY-----\nAAAABBBBCCCC\n-----END KEY-----\n"

    assert Secrets({"DEPLOY_KEY": key}).mask("read: AAAABBBBCCCC") == "read: [secret]"
    assert Secrets({"DEPLOY_KEY": key}).mask(f"all: {key}") == "all: [secret]\n"


def test_a_secret_that_is_no_text_is_masked_too():
    value = b"p\xffssword".decode(errors="surrogateescape")

    assert Secrets({"DB_PASSWORD": value}).mask(f"{value} p%FFssword") == "[secret] [secret]"
