"""The doctor on tokens: whether they are there, never what they are."""

from collections.abc import Iterator, Mapping

from mbt_cli.machine.findings import Finding, absent, broken, ok

_USUAL = {
    "HF_TOKEN": "gated and private repositories of the hub",
    "WANDB_API_KEY": "training curves online",
}


def token_findings(environment: Mapping[str, str], needed: Mapping[str, str]) -> Iterator[Finding]:
    """The usual tokens, and those that a manifest names.

    Args:
        environment: The process environment, `.env` merged in.
        needed: Variable to the model that needs it.
    """
    for name, purpose in _USUAL.items():
        if name not in needed:
            yield _finding(name, purpose, environment, is_needed=False)
    for name, model in needed.items():
        yield _finding(name, f"the model {model}", environment, is_needed=True)


def _finding(
    name: str, purpose: str, environment: Mapping[str, str], *, is_needed: bool
) -> Finding:
    if environment.get(name, "").strip():
        return ok("tokens", name, f"is set: for {purpose}")
    if name == "HF_TOKEN" and _is_logged_in():
        return ok("tokens", name, f"`hf auth login` left one: for {purpose}")
    found = f"is not set: for {purpose}"
    wrong = broken if is_needed else absent
    return wrong("tokens", name, found, f"export {name}=..., or a line of .env")


def _is_logged_in() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
