"""The border between a program and its tests: what crosses it, and what does not."""

import collections
import datetime
import json
import math
import socket
import struct
import threading
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbt_cli.sandbox.border import BorderError, Guard, GuardOfTests, Remote, Side


class Program:
    """The far side: names and functions of a program, served in a thread."""

    def __init__(self, names):
        self.channel, far = socket.socketpair()
        self.side = Side(self.channel, GuardOfTests(__name__))
        served = Side(far, Guard(), operations={"global": names.__getitem__})
        self.thread = threading.Thread(target=self._serve, args=(served, far))
        self.thread.start()

    @staticmethod
    def _serve(side, channel):
        with suppress(BorderError):
            side.serve(lambda *_: None)
        channel.close()

    def __enter__(self):
        return lambda name: self.side.ask("global", name)

    def __exit__(self, *_):
        self.channel.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


def same(value):
    return value


class Shape:
    def __init__(self, size):
        self.size = size
        self.inner = None

    def grow(self, by=1):
        self.size += by
        return self

    def __eq__(self, other):
        return True

    def __contains__(self, item):
        return item == self.size

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([self.size, self.size])

    __hash__ = None


class OwnError(ValueError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


Point = collections.namedtuple("Point", "x y")

PLAIN = [
    None, True, False, 0, -1, 2**64, -(2**20_000), 0.5, -0.0, math.inf, "", "ü\udc80\0", b"\xff",
    3 + 4j, (), (1,), [], [1, [2, [3]]], {}, {1: 2, "a": [None]}, {(1, 2): 3}, set(), {1, "a"},
    frozenset({1}),
    range(1, 9, 2), slice(1, None), Fraction(1, 3), Decimal("1.10"), ..., NotImplemented,
    datetime.date(2020, 1, 2), datetime.timedelta(1, 2),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
    collections.deque([1, 2], maxlen=2), collections.OrderedDict([(2, 1), (1, 2)]),
    collections.Counter("aab"), collections.defaultdict(int, {1: 2}), bytearray(b"ab"), int, list,
    len,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_data_cross_with_their_types(value):
    with Program({"same": same}) as of:
        found = of("same")(value)

    assert found == value
    assert type(found) is type(value)
    if not isinstance(value, int):
        assert repr(found) == repr(value)


_keys = st.one_of(st.integers(), st.text(max_size=5), st.booleans(), st.none())
_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(_keys, inner, max_size=4),
        st.sets(_keys, max_size=4),
    ),
    max_leaves=20,
)


def test_any_nested_data_cross():
    with Program({"same": same}) as of:
        function = of("same")

        @given(_values)
        def check(value):
            assert repr(function(value)) == repr(value)

        check()


def test_nan_and_shared_and_endless_containers_cross():
    shared = [1]
    endless = [0]
    endless.append(endless)

    with Program({"same": same}) as of:
        function = of("same")
        assert math.isnan(function(math.nan))
        one, other = function((shared, shared))
        assert one is other
        assert one is shared  # a result that is an argument is that argument
        found = function([endless])[0]

    assert found is endless


def test_what_a_call_changes_in_its_arguments_changes_here():
    def change(items, mapping, nested):
        items.sort()
        mapping["new"] = items
        nested[0].append(4)
        nested.append(items)
        return mapping

    items, mapping, nested = [3, 1, 2], {}, [[1]]
    inner = nested[0]
    with Program({"change": change}) as of:
        result = of("change")(items, mapping, nested)

    assert items == [1, 2, 3]
    assert result is mapping
    assert mapping["new"] is items
    assert nested == [[1, 4], [1, 2, 3]]
    assert nested[0] is inner
    assert nested[1] is items


def test_subclasses_cross_as_their_base_whatever_they_say():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Text(str):
        def __str__(self):
            return "other"

    class Items(list):
        def __iter__(self):
            return iter([9])

    with Program(
        {"one": Liar(3), "text": Text("real"), "items": Items([1]), "point": Point(1, 2)}
    ) as of:
        assert type(of("one")) is int
        assert of("one") != 4
        assert of("text") == "real"
        assert of("items") == [1]
        assert of("point") == (1, 2)
        assert of("point").y == 2


def test_objects_stay_where_they_are():
    with Program({"Shape": Shape}) as of:
        shape = of("Shape")(2)
        shape.inner = of("Shape")(5)

        assert isinstance(shape, Remote)
        assert shape.grow(by=3).size == 5
        assert shape.grow() is shape
        assert shape.inner.size == 5
        assert 6 in shape
        assert len(shape) == 3
        assert list(shape) == [6, 6]
        assert isinstance(shape, of("Shape"))
        assert shape == shape.inner  # two objects of the program: it decides
        with pytest.raises(AttributeError, match="nothing"):
            _ = shape.nothing


def test_an_object_never_equals_plain_data():
    with Program({"shape": Shape(1)}) as of:
        shape = of("shape")

        assert shape != 1
        assert [shape] != [1]
        assert {"a": shape} != {"a": 1}
        with pytest.raises(TypeError):
            _ = shape < 2
        with pytest.raises(TypeError):
            abs(shape - 1)


def test_functions_and_iterators_are_called_across():
    def counted(n):
        yield from range(n)

    def adder(n):
        return lambda x: x + n

    def apply(function, *values):
        return [function(value) for value in values]

    with Program({"counted": counted, "adder": adder, "apply": apply}) as of:
        assert list(of("counted")(3)) == [0, 1, 2]
        assert of("adder")(2)(3) == 5
        assert of("apply")(lambda x: x * 2, 1, 2) == [2, 4]
        assert of("apply")(len, "ab", [1]) == [2, 1]


def test_exceptions_cross_with_their_class():
    def fail(kind):
        raise {"own": OwnError(1, 2), "key": KeyError("k"), "exit": SystemExit(0)}[kind]

    with Program({"fail": fail, "OwnError": OwnError}) as of:
        function = of("fail")
        with pytest.raises(KeyError) as caught:
            function("key")
        assert caught.value.args == ("k",)
        with pytest.raises(of("OwnError")) as caught:
            function("own")
        assert isinstance(caught.value, ValueError)
        assert str(caught.value) == "1 and 2"
        with pytest.raises(SystemExit):
            function("exit")


def test_a_test_may_pass_its_own_objects_and_nothing_leads_further():
    seen = []

    def explore(shape):
        shape.size = 7
        for name in ("__dict__", "__globals__", "_hidden"):
            with suppress(AttributeError, TypeError):
                seen.append(getattr(shape, name))
        with suppress(AttributeError, TypeError):
            seen.append(shape.grow.__globals__)
        return shape.grow(2).size

    with Program({"explore": explore}) as of:
        shape = Shape(1)
        assert of("explore")(shape) == 9
        assert shape.size == 9
        for refused in (json, open, object(), type):
            with pytest.raises(TypeError):
                of("explore")(refused)

    assert seen == []


HOSTILE = [
    b"",
    b"\x00",
    struct.pack("=I", 0xFFFFFFFF) + b"x" * 100,
    b"null", b"[]", b"{}", b"3", b"[[]]", b"not JSON", b'["done"]', b'["done", 1]',
    b'["done", ["q", 0], []]', b'["done", ["r", 5], []]', b'["done", ["m", "list", 3, []], []]',
    b'["done", ["m", "module", 0, []], []]', b'["done", ["n", "eval"], []]',
    b'["done", ["mine", "x"], []]',
    b'["done", ["yours", 99], []]', b'["done", ["v", "os", []], []]',
    b'["done", ["init__", 1], []]',
    b'["done", ["nt", "x; import os", ["a"], [1]], []]', b'["done", 1, [[0, []]]]',
    b'["raised", 3, [], ""]', b'["raised", [["n", "int"], [], ""], [], ""]', b'["ask"]',
    b'["ask", "call", [["yours", 0]], {}]',
    b'["done", ["m", "dict", 0, [["m", "list", 1, []], 1]], []]',
    b'["done", ["i", "zz"], []]', b'["done", ' + b"[" * 100_000 + b"]" * 100_000 + b", []]",
    b'["done", {"a": 1}, {}]', b'["done", 1' + b"0" * 6000 + b", []]",
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_message_is_the_end_and_nothing_else(data):
    ours, theirs = socket.socketpair()
    side = Side(ours, GuardOfTests(__name__))
    framed = data if data[:1] in (b"", b"\x00", b"\xff") else struct.pack("=I", len(data)) + data
    theirs.sendall(framed)
    theirs.shutdown(socket.SHUT_WR)

    with pytest.raises(BorderError):
        side.ask("global", "f")

    assert side.is_over
    ours.close()
    theirs.close()


_words = st.sampled_from(["m", "t", "q", "n", "v", "list", "done"])
_messages = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), _words),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_messages)
def test_no_message_makes_more_than_a_border_error(message):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        side = Side(ours, GuardOfTests(__name__))
        data = json.dumps(["done", message, []]).encode()
        theirs.sendall(struct.pack("=I", len(data)) + data)
        theirs.shutdown(socket.SHUT_WR)
        with suppress(BorderError):
            side.ask("global", "f")
