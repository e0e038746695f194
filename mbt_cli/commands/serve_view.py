"""What `mbt serve` tells of a server that is ready."""

import json

from mbt_cli.core.chat import Endpoint
from mbt_cli.machine.serving import ENDPOINT_KEY


def how_to_ask(endpoint: Endpoint, *, shows_key: bool) -> str:
    """Lines to copy: the key, a request, a manifest's model.

    Args:
        endpoint: The server.
        shows_key: Whether the key was made for it, so that nobody knows it yet.
    """
    lines = [""]
    if endpoint.api_key and shows_key:
        lines += [
            "its key, made for this process and shown this once; in the shell that asks:",
            f"  export {ENDPOINT_KEY}={endpoint.api_key}",
            "",
        ]
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hello"}]}
    has_key = endpoint.api_key is not None
    bearer = f' -H "Authorization: Bearer ${ENDPOINT_KEY}"' if has_key else ""
    variable = f', api_key_env = "{ENDPOINT_KEY}"' if has_key else ""
    lines += [
        "a request:",
        f"  curl {endpoint.base_url}/chat/completions{bearer} "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        "",
        "in a manifest:",
        "  [models.NAME]",
        f'  backend = {{ kind = "openai", base_url = "{endpoint.base_url}"{variable} }}',
        f"  id = {json.dumps(endpoint.model)}",
        '  sampling = "..."',
        "",
        "Ctrl-C ends it",
    ]
    return "\n".join(lines)
