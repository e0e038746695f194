"""The border between a program under test and its tests: two processes that exchange plain data.

Each side is a `Side`. It asks the other one to call, read or iterate objects, which stay where
they are: numbers, texts and containers cross as copies, anything else as a reference. A call gives
back what it changed in the containers that were passed to it.

The tests trust nothing that comes from the program. A message is JSON, never a pickle; a reference
can only be to an object that the other side was given; what the program may do with an object of
the tests is limited to what a test means by passing it. Whether an object of the program equals
plain data is decided here, and is never asked of the program.

It runs inside the sandbox and imports the standard library alone.
"""

import builtins
import collections
import copy
import datetime
import decimal
import fractions
import functools
import itertools
import json
import operator
import socket
import struct
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

_LENGTH = struct.Struct("=I")
_MOST_BYTES = 32 << 20
_SCALARS = frozenset({str, int, float, bool, type(None)})
_LONG_INTEGER = 10_000
"""Bits of an integer that JSON would write slowly."""
_LONGEST_TEXT = 2_000
"""Characters of the text of an exception."""

Json = Any


class BorderError(Exception):
    """The other side has ended, or sent something that no honest side sends."""


class Remote:
    """An object of the other side.

    What Python does with it is asked of the other side, but for comparisons with plain data: those
    give what two unrelated objects give.
    """

    __slots__ = ("_key", "_side")

    def __init__(self, side: "Side", key: int) -> None:
        object.__setattr__(self, "_side", side)
        object.__setattr__(self, "_key", key)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._side.ask("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return self._side.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._side.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._side.ask("delattr", self, name)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Remote):
            return NotImplemented
        return self is other or bool(self._side.ask("eq", self, other))

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, Remote):
            return bool(self._side.ask("contains", self, item))
        # a program must not decide whether it has given plain data that a test expects
        return any(one is item or one == item for one in self)

    def __iter__(self) -> Iterator[Any]:
        return cast("Iterator[Any]", self._side.ask("iter", self))

    def __format__(self, form: str) -> str:
        return cast("str", self._side.ask("format", self, form))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and bool(self._side.ask("isinstance", instance, self))

    def __subclasscheck__(self, subclass: object) -> bool:
        return isinstance(subclass, Remote) and bool(self._side.ask("issubclass", subclass, self))

    def __deepcopy__(self, memo: object) -> Any:
        return self._side.ask("deepcopy", self)

    def __enter__(self) -> Any:
        return self._side.ask("call", self._side.ask("getattr", self, "__enter__"))

    def __exit__(self, *error: object) -> Any:
        leave = self._side.ask("getattr", self, "__exit__")
        return self._side.ask("call", leave, None, None, None)


def _forwarded(operation: str) -> Callable[..., Any]:
    def forward(self: Remote, *others: Any) -> Any:
        return self._side.ask(operation, self, *others)

    return forward


def _among_remotes(operation: str) -> Callable[..., Any]:
    def forward(self: Remote, *others: Any) -> Any:
        # a program must not decide what a difference or a comparison with plain data is
        if not all(isinstance(other, Remote) for other in others):
            return NotImplemented
        return self._side.ask(operation, self, *others)

    return forward


def _item(container: Any, key: Any) -> Any:
    return container[key]


_ALONE: dict[str, Callable[..., Any]] = {
    "next": next, "len": len, "str": str, "repr": repr, "bool": bool, "int": int,
    "float": float, "abs": abs, "neg": operator.neg, "index": operator.index, "round": round,
    "reversed": reversed, "getitem": _item,
    "setitem": operator.setitem, "delitem": operator.delitem,
}  # fmt: skip
_PAIRS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
                 "matmul", "and_", "or_", "xor")
}  # fmt: skip
for _name in _ALONE:
    setattr(Remote, f"__{_name}__", _forwarded(_name))
for _name in _PAIRS:
    setattr(Remote, f"__{_name.rstrip('_')}__", _among_remotes(_name))


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return function(*arguments, **named)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **_ALONE,
    **_PAIRS,
    "call": _call,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "contains": operator.contains,
    "format": format,
    "deepcopy": copy.deepcopy,
    "eq": operator.eq,
    "isinstance": isinstance,
    "issubclass": issubclass,
}

_NAMED: dict[str, Any] = {
    value.__name__: value
    for value in (
        int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, object,
        range, type(None), abs, all, any, bin, chr, divmod, hex, len, max, min, oct, ord, pow, repr,
        round, sorted, sum,
    )
}  # fmt: skip
_NAMED |= {"Ellipsis": ..., "NotImplemented": NotImplemented}
"""What crosses by name."""
_ERRORS: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
_GROUPS = ("BaseExceptionGroup", "ExceptionGroup")
for _name in _GROUPS:
    _ERRORS.pop(_name, None)


def _constant(kind: Callable[..., Any], *fields: str) -> tuple[Any, Any]:
    return kind, lambda value: [getattr(value, name) for name in fields]


_DATE = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond")


def _datetime(*parts: Any) -> datetime.datetime:
    *numbers, offset = parts
    zone = None if offset is None else datetime.timezone(offset)
    return datetime.datetime(*numbers).replace(tzinfo=zone)  # noqa: DTZ001 - the zone may be none


def _datetime_parts(value: datetime.datetime) -> list[Any]:
    return [*(getattr(value, name) for name in (*_DATE, *_TIME)), value.utcoffset()]


_VALUES: dict[str, tuple[Callable[..., Any], Callable[[Any], list[Any]]]] = {
    "complex": _constant(complex, "real", "imag"),
    "range": _constant(range, "start", "stop", "step"),
    "slice": _constant(slice, "start", "stop", "step"),
    "Fraction": _constant(fractions.Fraction, "numerator", "denominator"),
    "Decimal": (decimal.Decimal, lambda value: [str(value)]),
    "date": _constant(datetime.date, *_DATE),
    "time": _constant(datetime.time, *_TIME),
    "datetime": (_datetime, _datetime_parts),
    "timedelta": _constant(datetime.timedelta, "days", "seconds", "microseconds"),
    "bytes": (bytes.fromhex, lambda value: [value.hex()]),
}
"""Immutable types that cross by value: how one is made, and from what."""
_VALUE_NAMES: dict[type, str] = {
    kind: kind.__name__
    for kind in (complex, range, slice, fractions.Fraction, decimal.Decimal, datetime.date,
                 datetime.time, datetime.datetime, datetime.timedelta, bytes)
}  # fmt: skip
_VIEWS: dict[type, str] = {
    type({}.keys()): "keys",
    type({}.items()): "items",
    type({}.values()): "values",
}
_MUTABLE: tuple[type, ...] = (
    list, dict, set, bytearray, collections.deque, collections.OrderedDict, collections.Counter,
    collections.defaultdict,
)  # fmt: skip
"""Containers that cross as copies, and whose changes come back; a subclass crosses as its base."""
_MUTABLE_NAMES = {kind.__name__: kind for kind in _MUTABLE}


class _Writer:
    """One message's objects as JSON; a container that occurs twice is written once."""

    def __init__(self, side: "Side", known: Mapping[int, int]) -> None:
        self._side = side
        self._known = known  # containers of the request that is replied to
        self._seen: dict[int, int] = {}
        self.containers: list[Any] = []

    def write(self, value: Any) -> Json:
        kind = type(value)
        if kind in _SCALARS:
            return ["i", hex(value)] if kind is int and _is_long(value) else value
        if kind is tuple:
            return ["t", self._all(value)]
        if kind is Remote:
            if value._side is not self._side:
                raise TypeError("an object of another program")
            return ["yours", value._key]
        if (place := self._known.get(id(value))) is not None:
            return ["q", place]
        if (place := self._seen.get(id(value))) is not None:
            return ["r", place]
        if (base := _base(kind)) is not None:
            self._seen[id(value)] = len(self.containers)
            self.containers.append(value)
            return ["m", base.__name__, len(self.containers) - 1, self.content(base, value)]
        return self._other(kind, value)

    def content(self, base: type, value: Any) -> Json:
        """What a container holds."""
        if issubclass(base, dict):
            flat = itertools.chain.from_iterable(dict.items(value))
            held = self._all(list(flat))
            if base is collections.defaultdict:
                factory = value.default_factory
                held.append(self.write(factory if _name_of(factory) else None))
            return held
        if base is bytearray:
            return value.hex()
        if base is collections.deque:
            return [value.maxlen, *self._all(list(collections.deque.__iter__(value)))]
        items: Iterable[Any] = base.__iter__(value)  # type: ignore[attr-defined]
        return self._all(list(items))

    def _all(self, values: Any) -> list[Json]:
        kinds = set(map(type, values))
        if kinds <= _SCALARS and not (
            int in kinds and any(type(v) is int and _is_long(v) for v in values)
        ):
            return list(values)
        return [self.write(value) for value in values]

    def _other(self, kind: type, value: Any) -> Json:
        if kind is frozenset:
            return ["f", self._all(list(value))]
        if (name := _VALUE_NAMES.get(kind)) is not None:
            return ["v", name, self._all(_VALUES[name][1](value))]
        if kind in _VIEWS:
            return ["w", _VIEWS[kind], self.write(list(value))]
        if (name := _name_of(value)) is not None:
            return ["n", name]
        if isinstance(value, tuple):
            fields = getattr(kind, "_fields", None)
            if isinstance(fields, tuple) and all(type(name) is str for name in fields):
                return ["nt", kind.__name__, list(fields), self._all(tuple(value))]
            return ["t", self._all(list(tuple.__iter__(value)))]
        for base in (int, str, float, frozenset, bytes, complex):  # a subclass crosses as its base
            if isinstance(value, base):
                return self.write(_plain(base, value))
        if (scalar := _numpy_scalar(value)) is not None:
            return self.write(scalar)
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._side.error_class(value)
        return ["mine", self._side.export(value)]


def _is_long(value: int) -> bool:
    return value.bit_length() > _LONG_INTEGER


def _name_of(value: Any) -> str | None:
    if value is Ellipsis or value is NotImplemented:
        return repr(value)
    if type(value) not in (type, types.BuiltinFunctionType):
        return None
    name: str = value.__name__
    return name if _NAMED.get(name) is value else None


def _plain(base: type, value: Any) -> Any:
    """The value of an instance of a subclass, whatever its class says."""
    if base is int:
        return int.__index__(value)
    if base is float:
        return float.__float__(value)
    if base is str:
        return str.__str__(value)
    if base is complex:
        return complex.__complex__(value)
    return base.__new__(base, base.__iter__(value))  # type: ignore[attr-defined]


def _base(kind: type) -> type | None:
    for base in reversed(_MUTABLE):
        if issubclass(kind, base):
            return base
    return None


def _numpy_scalar(value: Any) -> Any:
    kind = type(value)
    if kind.__module__ != "numpy" or getattr(value, "shape", None) != ():
        return None
    found = value.item()
    return found if type(found) in _SCALARS | {complex, bytes} else None


class _Reader:
    """Objects from one message.

    Args:
        mine: The containers of the request that this message replies to.
    """

    def __init__(self, side: "Side", mine: list[Any]) -> None:
        self._side = side
        self._mine = mine
        self.containers: list[Any] = []

    def read(self, tree: Json) -> Any:
        if type(tree) in _SCALARS:
            return tree
        tag = tree[0]
        return getattr(self, f"_read_{tag}")(*tree[1:])

    def _all(self, trees: list[Json]) -> list[Any]:
        if set(map(type, trees)) <= _SCALARS:
            return trees
        return [self.read(tree) for tree in trees]

    def _read_i(self, text: str) -> int:
        return int(text, 16)

    def _read_t(self, items: list[Json]) -> tuple[Any, ...]:
        return tuple(self._all(items))

    def _read_f(self, items: list[Json]) -> frozenset[Any]:
        return frozenset(self._all(items))

    def _read_v(self, name: str, parts: list[Json]) -> Any:
        return _VALUES[name][0](*self._all(parts))

    def _read_w(self, name: str, items: Json) -> Any:
        held = self.read(items)
        if name == "values":
            return dict(enumerate(held)).values()
        return dict.fromkeys(held).keys() if name == "keys" else dict(held).items()

    def _read_n(self, name: str) -> Any:
        return _NAMED[name]

    def _read_nt(self, name: str, fields: list[str], items: list[Json]) -> Any:
        return _named_tuple(str(name), tuple(map(str, fields)))(*self._all(items))

    def _read_q(self, place: int) -> Any:
        return self._mine[place]

    def _read_r(self, place: int) -> Any:
        return self.containers[place]

    def _read_m(self, name: str, place: int, content: Json) -> Any:
        kind = _MUTABLE_NAMES[name]
        made = kind() if kind is not collections.deque else collections.deque(maxlen=content[0])
        if place != len(self.containers):
            raise BorderError("containers out of order")
        self.containers.append(made)
        self.fill(made, content)
        return made

    def fill(self, container: Any, content: Json) -> None:
        """Replace what a container holds."""
        kind = _base(type(container))
        if kind is bytearray:
            container[:] = bytes.fromhex(content)
            return
        items = self._all(list(content))
        if kind is collections.defaultdict:
            container.default_factory = items.pop()
        if kind is collections.deque:
            items = items[1:]
        container.clear()
        if kind is list or kind is collections.deque:
            container.extend(items)
        elif kind is set:
            container.update(items)
        else:
            for key, value in zip(items[::2], items[1::2], strict=True):
                container[key] = value

    def _read_mine(self, key: int) -> Any:
        return self._side.remote(int(key))

    def _read_yours(self, key: int) -> Any:
        return self._side.exported(int(key))

    def _read_error_class(self, key: int, name: str, bases: list[str]) -> Any:
        return self._side.local_error(int(key), str(name), bases)


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


class Side:
    """One end of the border.

    Args:
        channel: A connected stream socket.
        guard: What the other side may do with the objects of this one.
        operations: Further ones that the other side may ask for.
        wait: Called before each read; it returns when there is something to read.
    """

    def __init__(
        self,
        channel: socket.socket,
        guard: "Guard",
        *,
        operations: Mapping[str, Callable[..., Any]] | None = None,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._guard = guard
        self._operations = {**_OPERATIONS, **(operations or {})}
        self._wait = wait
        self._lock = threading.RLock()
        self._exports: dict[int, Any] = {}
        self._keys: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[int, type[BaseException]] = {}
        self.is_over = False
        """Whether the other side has ended or broken the rules."""

    # Objects

    def export(self, value: Any) -> int:
        """The key by which the other side names an object."""
        self._guard.check_export(value)
        key = self._keys.setdefault(id(value), len(self._keys))
        self._exports[key] = value
        return key

    def exported(self, key: int) -> Any:
        """The object that the other side names."""
        if key not in self._exports:
            raise BorderError("a reference to nothing")
        return self._exports[key]

    def remote(self, key: int) -> Any:
        """The object of the other side that has a key; the same one each time."""
        return self._remotes.setdefault(key, Remote(self, key))

    def error_class(self, kind: type[BaseException]) -> Json:
        """An exception class as JSON: the name of a built-in one, or a class of this side."""
        if _ERRORS.get(kind.__name__) is kind:
            return ["error_class", -1, kind.__name__, [kind.__name__]]
        bases = [base.__name__ for base in kind.__mro__ if _ERRORS.get(base.__name__) is base]
        return ["error_class", self.export(kind), kind.__name__, bases]

    def local_error(self, key: int, name: str, bases: list[str]) -> type[BaseException]:
        """An exception class of the other side, as one that can be raised and caught here."""
        base = next((_ERRORS[one] for one in bases if one in _ERRORS), Exception)
        if key < 0:
            return base
        if key not in self._errors:
            made = type(name, (base,), {"__str__": _text_of, "__module__": "program"})
            self._errors[key] = made
        return self._errors[key]

    # Requests

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Let the other side do something with its objects; raises what it raises there.

        Raises:
            BorderError: The other side has ended, or broke the rules.
        """
        with self._lock:
            writer = _Writer(self, {})
            packed = [writer.write(one) for one in arguments]
            request = ["ask", operation, packed, {k: writer.write(v) for k, v in named.items()}]
            self._send(request)
            return self._reply_to(writer.containers)

    def tell(self, *message: Json) -> Json:
        """Send a message in JSON that is not about objects; the reply."""
        with self._lock:
            self._send(["tell", *message])
            return self._reply_to([])

    def post(self, *message: Json) -> None:
        """Send a message as `tell` does, and expect no reply."""
        with self._lock:
            self._send(["tell", *message])

    def _reply_to(self, containers: list[Any]) -> Any:
        while True:
            message = self._receive()
            if message is None:
                raise BorderError("the other side has ended")
            with self._checked():
                kind = message[0]
                if kind == "ask":
                    self._answer(message)
                    continue
                reader = _Reader(self, containers)
                value = reader.read(message[1])
                for place, content in message[2]:
                    reader.fill(containers[place], content)
                if kind == "done":
                    return value
                error = self._error(value, message[3])
            raise error

    def serve(self, told: Callable[..., Json]) -> None:
        """Do what the other side asks until it ends.

        Args:
            told: Called with the messages of `tell`.
        """
        while (message := self._receive()) is not None:
            if message[0] == "tell":
                self._send(["done", told(*message[1:]), []])
            else:
                self._answer(message)

    def _answer(self, message: Json) -> None:
        _, operation, packed, named = message
        reader = _Reader(self, [])
        arguments = [reader.read(one) for one in packed]
        extra = {str(key): reader.read(one) for key, one in named.items()}
        held = [_snapshot(one) for one in reader.containers]
        kind, value, error = "done", None, None
        try:
            self._guard.check(operation, arguments)
            value = self._operations[operation](*arguments, **extra)
        except BorderError:
            raise
        except BaseException as raised:  # noqa: BLE001 - it goes to the other side
            kind, error = "raised", raised
        self._guard.done()
        known = {id(one): place for place, one in enumerate(reader.containers)}
        try:
            reply = self._reply(kind, value, error, reader.containers, held, known)
            self._send(reply)
        except BorderError:
            raise
        except Exception as refused:  # noqa: BLE001 - it cannot cross
            self._send(self._reply("raised", None, TypeError(str(refused)), [], [], {}))

    def _reply(
        self,
        kind: str,
        value: Any,
        error: BaseException | None,
        containers: list[Any],
        held: list[Any],
        known: Mapping[int, int],
    ) -> Json:
        writer = _Writer(self, known)
        packed = writer.write(value) if error is None else writer.write(self._parts(error))
        changes = []
        for place, (container, before) in enumerate(zip(containers, held, strict=True)):
            if not _is_same(_snapshot(container), before):
                base = _base(type(container)) or list
                changes.append([place, writer.content(base, container)])
        if error is None:
            return [kind, packed, changes]
        return [kind, packed, changes, self._guard.place(error)]

    def _parts(self, error: BaseException) -> list[Any]:
        try:
            text = str(error)[:_LONGEST_TEXT]
        except Exception:  # noqa: BLE001 - a program's own class
            text = ""
        plain = [one for one in error.args if type(one) in _SCALARS]
        return [type(error), plain if len(plain) == len(error.args) else [text], text]

    def _error(self, parts: Any, place: Json) -> BaseException:
        kind, arguments, text = parts
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise BorderError("an exception that is not one")
        try:
            made = kind(*arguments)
        except Exception:  # noqa: BLE001 - a built-in class that needs other arguments
            made = RuntimeError(str(text))
        made.border_text = str(text)  # type: ignore[attr-defined]
        made.border_place = place if isinstance(place, str) else ""  # type: ignore[attr-defined]
        return made

    # Bytes

    def _send(self, message: Json) -> None:
        data = json.dumps(message).encode()
        if len(data) > _MOST_BYTES:
            raise ValueError("more than 32 MB of data")
        try:
            self._channel.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            self.is_over = True
            raise BorderError("the other side has ended") from None

    def _receive(self) -> Json | None:
        """The next message; None at the end."""
        with self._checked():
            head = self._read(_LENGTH.size)
            if head is None:
                self.is_over = True
                return None
            (size,) = _LENGTH.unpack(head)
            if size > _MOST_BYTES:
                raise ValueError("too long")
            data = self._read(size)
            if data is None:
                self.is_over = True
                return None
            message = json.loads(data)
            if not isinstance(message, list) or not message:
                raise TypeError("not a message")
            return message

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            self._wait()
            try:
                part = self._channel.recv(min(size - len(data), 1 << 20))
            except OSError:
                part = b""
            if not part:
                return None
            data += part
        return bytes(data)

    def _checked(self) -> "_Checked":
        return _Checked(self)


class _Checked:
    """Turns whatever a hostile message raises into a BorderError."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        self._side.is_over = True
        if isinstance(error, BorderError):
            return
        raise BorderError("the other side sent something else than a message") from None


def _text_of(error: BaseException) -> str:
    return str(getattr(error, "border_text", ""))


def _snapshot(container: Any) -> Any:
    if isinstance(container, dict):
        return list(itertools.chain.from_iterable(dict.items(container)))
    return bytes(container) if isinstance(container, bytearray) else list(container)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bytes):
        return bool(one == other)
    return len(one) == len(other) and all(map(operator.is_, one, other))


class Guard:
    """What the other side may do: everything, if this is the side of the program."""

    def check_export(self, value: Any) -> None:
        """Refuse to pass an object; TypeError."""

    def check(self, operation: str, arguments: list[Any]) -> None:
        """Refuse an operation; TypeError."""

    def done(self) -> None:
        """Called after each operation."""

    def place(self, error: BaseException) -> str:
        """Where an exception comes from, for people."""
        return ""


class GuardOfTests(Guard):
    """What a program may do with the objects of its tests.

    It may call functions, go on in iterators, and use instances of the tests' own classes, but for
    names that begin with an underscore, which lead to everything else.

    Args:
        module: Name of the module of the tests.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def check_export(self, value: Any) -> None:
        if not (self._is_function(value) or self._is_own(value) or isinstance(value, Iterator)):
            raise TypeError(f"a test cannot pass a {type(value).__name__} to the program")

    def check(self, operation: str, arguments: list[Any]) -> None:
        target = arguments[0] if arguments else None
        if operation in ("getattr", "setattr", "delattr"):
            name = arguments[1]
            is_fine = type(name) is str and not name.startswith("_") and self._is_own(target)
            # another attribute of a class would be one of all its instances
            is_fine = is_fine and (operation == "getattr" or not isinstance(target, type))
            if not is_fine and operation == "getattr":
                # as of an object without it: `functools.wraps` takes what there is
                raise AttributeError(f"the program cannot read `{name}` of an object of its tests")
        elif operation == "call":
            is_fine = self._is_function(target) or self._is_own(target)
        elif operation in ("iter", "next"):
            is_fine = isinstance(target, Iterator) or self._is_own(target)
        else:
            is_fine = self._is_own(target) and operation not in ("isinstance", "issubclass")
        if not is_fine:
            raise TypeError(f"the program cannot {operation} an object of its tests")

    def _is_function(self, value: Any) -> bool:
        if isinstance(value, types.FunctionType):
            return value.__module__ == self._module
        if isinstance(value, types.MethodType):
            return self._is_own(value.__self__)
        if isinstance(value, functools.partial):
            return self._is_function(value.func)
        return isinstance(value, types.BuiltinFunctionType) and value.__module__ == "math"

    def _is_own(self, value: Any) -> bool:
        kind = value if isinstance(value, type) else type(value)
        return getattr(kind, "__module__", None) == self._module
