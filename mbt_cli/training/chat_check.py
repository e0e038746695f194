"""Whether a model's chat template can write traces: -m mbt_cli.training.chat_check.

Takes a `ChatQuestion` as JSON and prints a `ChatAnswer`. Needs no torch and no network.
"""

import sys

from mbt_cli.core.chat import Message
from mbt_cli.core.training_job import ChatAnswer, ChatQuestion
from mbt_cli.training.mask import HINTS, ChatFormat, ChatTemplateError, UntrainableError
from mbt_cli.training.problems import TrainingError
from mbt_cli.training.tokenizer import ModelTokenizer, load_tokenizer

_LONGEST = 1 << 30


def answer_to(question: ChatQuestion) -> ChatAnswer:
    """A trace and its answer in the model's form, or why not; empty if the model is not here."""
    try:
        tokenizer = load_tokenizer(question.weights)
    except TrainingError as error:
        return ChatAnswer(problem=error.message, hint=error.hint)
    except OSError:
        return ChatAnswer()
    chat = ChatFormat(ModelTokenizer(tokenizer, question.template))
    messages = [Message(role=m["role"], content=m["content"]) for m in question.messages]
    try:
        example = chat.example(messages, "TRACE", "ANSWER", max_length=_LONGEST)
    except ChatTemplateError as error:
        return ChatAnswer(problem=str(error), hint="use another model")
    except UntrainableError as error:
        reason = str(error)
        return ChatAnswer(problem=reason, hint=HINTS.get(reason.partition(":")[0], ""))
    return ChatAnswer(reply=example.completion)


if __name__ == "__main__":
    sys.stdout.write(
        "\n" + answer_to(ChatQuestion.model_validate_json(sys.argv[1])).model_dump_json()
    )
