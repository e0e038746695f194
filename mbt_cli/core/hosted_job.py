"""What an API with fine-tuning jobs calls things."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Ended = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobsApi:
    """Where an API has files and jobs below `base_url`, and what it calls things.

    Args:
        upload: Path to which a file is posted.
        upload_fields: Fields of the form beside `file`; `{name}` is the file's name.
        jobs: Path of the jobs; a job's events and `cancel` are below it.
        ended: Status of a job that has ended, to how it ended.
        model: Field of a job with the name of the trained model.
        tokens: Field of a job with the tokens that were trained, all epochs together.
        newest_first: Whether its lists begin with the newest.
        least_rows: Examples that a file must have.
    """

    upload: str
    upload_fields: Mapping[str, str]
    jobs: str
    ended: Mapping[str, Ended]
    model: str
    tokens: str
    newest_first: bool = False
    least_rows: int = 1
