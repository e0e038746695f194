import html
import itertools
import json
import time
from base64 import b64encode, encodebytes, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest

from mbt_cli.core.secrets import Secrets, hold, is_secret, mask_json

ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-proj-12345678",
    "HF_TOKEN": "hf_abcd1234",
    "DB_PASSWORD": "p@ss word!",
    "TOKENIZERS_PARALLELISM": "disabled",
    "SOME_TOKEN": "true",
    "PATH": "/usr/bin",
}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key sk-proj-12345678 used", "key [secret] used"),
        ("hf_abcd1234/sk-proj-12345678", "[secret]/[secret]"),
        ("postgres://p%40ss%20word%21@host", "postgres://[secret]@host"),
        ("disabled true /usr/bin", "disabled true /usr/bin"),
    ],
)
def test_values_of_secret_variables_are_masked_and_others_are_not(text, masked):
    assert Secrets(ENVIRONMENT).mask(text) == masked


def test_a_secret_that_holds_another_is_masked_whole():
    secrets = Secrets({"A_KEY": "abc-1234", "B_KEY": "abc-1234-ghijkl"})

    assert secrets.mask("abc-1234-ghijkl") == "[secret]"


def test_each_line_of_a_key_of_several_lines_is_masked():
    key = "-----BEGIN KEY-----\nAAAA9999CCCC\n-----END KEY-----\n"

    assert Secrets({"DEPLOY_KEY": key}).mask("read: AAAA9999CCCC") == "read: [secret]"
    assert Secrets({"DEPLOY_KEY": key}).mask(f"all: {key}") == "all: [secret]\n"


def test_a_credential_in_json_holds_its_values_and_not_its_words():
    credential = '{\n  "type": "service_account",\n  "private_key_id": "0123456789abcdef0123"\n}'
    secrets = Secrets({"GOOGLE_CREDENTIALS": credential, "AUTH_SERVICE_PORT": "tcp://10.0.0.1:80"})
    secrets.hold({"COMPASS_URL": "https://compass.example.org/start"})
    ordinary = '"type": "service_account", https://compass.example.org/start tcp://10.0.0.1:80'

    assert secrets.mask("id 0123456789abcdef0123") == "id [secret]"
    assert secrets.mask(ordinary) == ordinary


@pytest.mark.parametrize(
    ("value", "named", "is_held"),
    [
        ("https://auth.example.org/oauth/v2/", [], False),
        ("https://auth.example.org/oauth/v2/", ["AUTH_URL"], True),
        ("https://hooks.example.org/T0/abcdef0123456789", [], True),
        ("https://hooks.example.org/v1?sig=abcdef", [], True),
    ],
)
def test_an_address_is_no_secret_unless_it_is_named_or_may_hold_a_key(value, named, is_held):
    masked = Secrets({"AUTH_URL": value}, named).mask(f"at {value}")

    assert masked == ("at [secret]" if is_held else f"at {value}")


def test_a_secret_that_is_no_text_is_masked_too():
    value = b"p\xffssword".decode(errors="surrogateescape")

    assert Secrets({"DB_PASSWORD": value}).mask(f"{value} p%FFssword") == "[secret] [secret]"


KEY = "sk-proj/12+34 5678&Q"
ESCAPED = "".join(f"\\u{ord(c):04x}" for c in KEY)
BLANKS = (
    " ",
    "\n",
    "\r\n    ",
    "\\n",
    "\\\\n",
    "\0",
    "\u200b",
    "\u00ad",
    "\ufeff",
    "&nbsp;",
    "%0A",
)


@pytest.mark.parametrize(
    "shown",
    [
        KEY,
        KEY.upper(),
        KEY.lower(),
        quote(KEY),
        quote(KEY, safe=""),
        "".join(f"%{ord(c):02X}" for c in KEY),
        json.dumps(KEY).replace("/", "\\/"),
        ESCAPED,
        *(ESCAPED.replace("\\", "\\" * n) for n in (2, 7, 8, 9, 64)),
        ESCAPED[:18] + KEY[3:],
        html.escape(KEY).replace("&amp;", "&#38;"),
        "".join(f"&#{ord(c)};" for c in KEY),
        "".join(f"&#x{ord(c):x};" for c in KEY),
        KEY.encode().hex(),
        KEY.encode().hex().upper(),
        *(b64encode(f"{'x' * n}{KEY} and more".encode()).decode() for n in range(6)),
        urlsafe_b64encode(f"user:{KEY}".encode()).decode(),
        html.escape(KEY),
        html.escape(html.escape(KEY)),
        quote(quote(KEY, safe=""), safe=""),
        quote(json.dumps(KEY).strip('"'), safe=""),
        quote_plus(KEY),
        KEY.replace(" ", "+"),
        json.dumps(json.dumps(f"a{KEY}")).strip('\\"')[1:],
        KEY.encode().hex(":"),
        KEY.encode().hex(" ").upper(),
        "".join(f"\\x{ord(c):02x}" for c in KEY),
        "".join(f"\\u{{{ord(c):x}}}" for c in KEY),
        *(KEY[:9] + blank + KEY[9:] for blank in BLANKS),
        encodebytes(b"?" * 50 + KEY.encode()).decode()[60:],
        json.dumps(encodebytes(b"?" * 50 + KEY.encode()).decode())[60:],
        quote(b64encode(f"user:{KEY}".encode()).decode(), safe=""),
    ],
)
def test_a_secret_is_masked_in_every_form_in_which_a_server_may_echo_it(shown):
    masked = Secrets({"FOO": KEY, "BAR": "bar-1234"}, ["FOO"]).mask(f"key {shown}!")

    before, after = masked.removeprefix("key ").removesuffix("!").split("[secret]")
    assert shown.startswith(before)
    assert shown.endswith(after)
    assert len(before + after) < len(shown) / 2  # in base64 something stands before and after it


@pytest.mark.parametrize("value", ["pä55-wörter", b"p\xffssword".decode(errors="surrogateescape")])
@pytest.mark.parametrize("other", ["", "bar-12345678 "])
def test_a_secret_of_any_characters_is_masked_alone_and_beside_another(value, other):
    secrets = Secrets({"A_KEY": value, "B_KEY": "bar-12345678"})
    found = other and "[secret] "

    assert secrets.mask(other + quote(value, errors="surrogateescape")) == f"{found}[secret]"
    if value.isprintable():
        assert secrets.mask(other + json.dumps(value)) == f'{found}"[secret]"'


POISONS = ["\\", "\\u00", "&#", "&#x0", "&#0", "%5c", "%", "\\\\s", "s\\", "\\u0073", "&#115;"]


def test_a_backslash_before_an_escape_may_be_the_secrets_own():
    assert Secrets({"A_KEY": r"home\user-12"}).mask(r"home\\\u0075ser-12") == "[secret]"


@pytest.mark.parametrize("unit", POISONS)
@pytest.mark.parametrize("secret", [KEY, "\\\\share-12/a\\b", "ssssssss1"])
def test_masking_takes_time_that_grows_with_the_length_of_a_reply(unit, secret):
    secrets = Secrets({"A_KEY": secret})

    def seconds(length, ending):
        text = f"&#{(unit * length)[:length]} \\u00 {ending}"
        started = time.process_time()
        masked = secrets.mask(text)
        taken = time.process_time() - started
        assert (secret in masked, masked.count("[secret]")) == (False, 1 if ending else 0)
        return taken

    for ending in ("", secret):
        limit = 10 * seconds(25_000, ending) + 0.1
        # a busy machine may stretch one measurement
        assert any(seconds(100_000, ending) < limit for _ in range(3))


def test_a_reply_of_100_kb_is_masked_in_milliseconds_whatever_it_is_made_of():
    keys = {f"K{n}_KEY": b64encode(f"a key, number {n}".encode()).decode() for n in range(20)}
    secrets = Secrets(keys)

    for unit in (
        *POISONS,
        "so \\frac{1}{2} of 100%, A&B\n",
        "日本語 ",
        "&amp;",
        "%25",
        "\\n",
        "0x3 ",
    ):
        text = (unit * 100_000)[:100_000]
        for ending in ("", keys["K7_KEY"], quote(quote(f"{keys['K7_KEY']}=", safe=""), safe="")):
            started = time.process_time()
            masked = secrets.mask(f"{text} {ending}")
            # tens of milliseconds; a quadratic search takes minutes
            assert time.process_time() - started < 2
            assert masked.count("[secret]") == (1 if ending else 0)


@pytest.mark.parametrize("length", [257, 3000])
def test_a_long_key_is_masked_with_its_escapes(length):
    key = (KEY * length)[:length]

    for shown in (ESCAPED * length)[: 6 * length], quote(key, safe=""), html.escape(key):
        assert Secrets({"A_KEY": key}).mask(f"<{shown}>") == "<[secret]>"


@pytest.mark.parametrize("encode", [json.dumps, html.escape, quote_plus])
def test_a_secret_is_masked_under_layers_of_escapes(encode):
    shown = secret = "p\"q's\\1&2<x %41"
    secrets = Secrets({"A_KEY": secret})

    for _ in range(3):  # `%41`, which is its own, looks like a fourth
        shown = encode(shown)
        assert "[secret]" in secrets.mask(f"is {shown}.")
        assert "2" not in secrets.mask(f"is {shown}.")


def test_a_secret_is_found_beside_halves_of_escapes_and_what_is_no_text():
    secrets = Secrets({"A_KEY": "key-1234/é"})
    halves = ("%", "%4", "\\", "\\u00", "&#", "&am", "0x", "é", "\udcff", "\ud800", "\u200b", "😀")

    for before, after in itertools.product(halves, halves):
        assert secrets.mask(f"{before}key-1234/é{after}") == f"{before}[secret]{after}"
        assert secrets.mask(f"{before}key-1234%2F%C3%A9 {after}") == f"{before}[secret] {after}"


def test_a_row_of_digits_is_masked_only_where_nothing_breaks_it():
    secrets = Secrets({"A_KEY": "0000000000000000"})

    assert secrets.mask("0 " * 40) == "0 " * 40
    assert secrets.mask("is 0000000000000000") == "is [secret]"


def test_what_surrounds_a_secret_stays():
    secrets = Secrets({"A_KEY": KEY, "B_KEY": f"{KEY}/longer"})

    assert secrets.mask(f"ä {quote(KEY)}\u200b\n日 {KEY}/longer\\n") == (
        "ä [secret]\u200b\n日 [secret]\\n"
    )


@pytest.mark.parametrize(
    ("name", "is_held"),
    [
        *(
            (n, True)
            for n in ("MYSQL_PWD", "GH_PAT", "SSHPASS", "HF_TOKEN1", "API_KEY_2", "DB_PASS")
        ),
        *(
            (n, False)
            for n in ("PWD", "OLDPWD", "COMPASS", "SSH_ASKPASS", "BYPASS", "SPAT", "PATH")
        ),
    ],
)
def test_the_name_of_a_variable_says_whether_it_holds_a_secret(name, is_held):
    assert is_secret(name) == is_held
    shown = "abcd-1234/x"
    assert Secrets({name: shown}).mask(shown) == ("[secret]" if is_held else shown)


def test_a_folder_is_no_secret(tmp_path):
    assert Secrets({"SAVED_PWD": str(tmp_path)}).mask(f"{tmp_path}/a") == f"{tmp_path}/a"


def test_a_variable_of_any_name_is_a_secret_once_it_is_named():
    secrets = Secrets()
    secrets.hold({"FOO": "foo-12345678", "BAR": "bar-12345678"}, ["FOO"])

    assert secrets.mask("foo-12345678 bar-12345678") == "[secret] bar-12345678"
    assert secrets.name_in("it is FOO-12345678") == "FOO"
    assert secrets.name_in("bar-12345678") is None


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_ENDPOINT", "https://me:p4ss-word@hub.example/x", "p4ss-word"),
        ("HTTPS_PROXY", "http://some-user-1:pw@proxy:3128", "some-user-1:pw"),
        ("http_proxy", "some-user-1:pw@proxy:3128", "some-user-1:pw"),
        ("DATABASE", "pg://u:p%40ss%2Dword@host/db", "p@ss-word"),
        ("SENTRY_DSN", "https://0123456789abcdef@sentry.example/1", "0123456789abcdef"),
        ("HF_ENDPOINT", "http://me:pw@hub.example/x", "//me:pw@"),
        ("WEIRD", "x https://a@b:token-123@host", "a@b:token-123"),
    ],
)
def test_user_and_password_of_a_url_are_secrets_whatever_the_variable(name, value, shown):
    assert Secrets({name: value}).mask(f"<{shown}>") == "<[secret]>"


@pytest.mark.parametrize("value", ["EMPTY", "not-needed", "Washington", "12345678", "2026-01-01"])
def test_short_values_words_and_numbers_are_no_secrets_so_that_replies_stay_as_they_are(value):
    assert Secrets({"MY_KEY": value}).mask(f"It is {value}.") == f"It is {value}."


def test_a_json_value_is_masked_in_all_its_texts():
    hold({"MASK_JSON_KEY": "mask-json-1234"})

    masked = mask_json({"a": ["mask-json-1234", 1], "mask-json-1234": {"b": None}})

    assert masked == {"a": ["[secret]", 1], "[secret]": {"b": None}}
