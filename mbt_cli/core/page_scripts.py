"""Data of the HTML report as scripts: a page that was opened as a file may load nothing else."""

import orjson

from mbt_cli.core.chat import Json

# each of these may only stand inside a JSON text, so it can be written as an escape anywhere
_ESCAPES = (
    (b"<", b"\\u003c"),  # no `</script>` and no `<!--`, wherever the text ends up
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def script(name: str, value: Json) -> bytes:
    r"""A script that hands `value` over to the page under `name`.

    Args:
        name: Path of the script below the page's data folder, without its suffix.
        value: JSON; NaN and infinities become null.

    Example:
        >>> script("a/b", {"text": "</script>"})
        b'mbt.take("a/b",{"text":"\\u003c/script>"});\n'
    """
    body = orjson.dumps(value)
    for raw, escaped in _ESCAPES:
        body = body.replace(raw, escaped)
    return b"mbt.take(" + orjson.dumps(name) + b"," + body + b");\n"
