"""The rules of values, as docs/language/reference.md writes them down: each line here is a line there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import DOCS

from postroom.lang.values import values
from postroom.lang.values.attributes import METHODS
from postroom.lang.values.raised import WrongValue

from .programs import function_of, value_of


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", []])
def test_nothing_is_false(value: Any) -> None:
    assert values.truth(value) is False


@pytest.mark.parametrize("value", [True, 1, -0.5, "0", " ", [0], [None], {}, {"a": 1}])
def test_everything_else_is_true_even_an_empty_object(value: Any) -> None:
    assert values.truth(value) is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ("ä", "ä"),
        ([1, [2]], [1.0, [2]]),
        ({"a": [1], "b": None}, {"b": None, "a": [1]}),
        (None, None),
        ({}, {}),
    ],
)
def test_values_are_equal_by_content(one: Any, other: Any) -> None:
    assert values.equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (0, False), (1, "1"), (None, False), ([1], [True]), ({"a": 1}, {"a": True}), ([], {}), ("", None)],
)
def test_values_of_different_kinds_are_never_equal(one: Any, other: Any) -> None:
    assert not values.equal(one, other)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2", 3),
        ("1 + 2.5", 3.5),
        ('"a" + 1', "a1"),
        ('1 + "a"', "1a"),
        ('"n: " + null', "n: null"),
        ('"x" + true', "xtrue"),
        ('"l: " + [1, "b", 2.0]', "l: 1, b, 2"),
        ('"o: " + { a: [1] }', 'o: {"a": [1]}'),
        ("[1] + [2, 3]", [1, 2, 3]),
        ("6 / 3", 2),
        ("7 / 2", 3.5),
        ("1.5 * 2", 3),
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("7.5 % 2", 1.5),
        ("2 - 3 - 4", -5),
        ("2 + 3 * 4", 14),
        ("-(2 + 3)", -5),
        ("9007199254740993 + 1", 9007199254740994),
        ('json("9".repeat(4300)) - json("9".repeat(4300))', 0),
        ('"ab" < "b"', True),
        ("2 < 10", True),
        ('"2" < "10"', False),
        ("3 >= 3 && 3 <= 3 && !(3 > 3)", True),
        ("null || 5", 5),
        ('0 || "" || [] || "end"', "end"),
        ("1 && 2", 2),
        ("0 && 2", 0),
        ("{} && 3", 3),
        ("1...4", [1, 2, 3, 4]),
        ("3...1", []),
        ("[1, 2] == 1...2", True),
        ("null == null", True),
        ("1 != true", True),
        ("!null", True),
    ],
)
def test_operators_do_what_is_written_down(expression: str, expected: Any, tmp_path: Path) -> None:
    result = value_of(tmp_path, expression)

    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1 / 0", "1 cannot be divided by zero"),
        ("1.0 % 0", "1 cannot be divided by zero"),
        ("true + 1", "+ is for numbers, strings and lists, and here are the boolean true and the number 1"),
        ("null - 1", "- is for numbers, and here are null and the number 1"),
        ("[1] + 2", "+ is for numbers, strings and lists"),
        ('1 < "2"', '< compares two numbers or two strings, and here are the number 1 and the string "2"'),
        ("null >= null", ">= compares two numbers or two strings"),
        ("1e308 * 10", "the result of 1e+308 * 10 is too large"),
        ('-"a"', '- is for numbers, and this is the string "a"'),
        ("1.5...3", "... goes from a whole number to a whole number, and here is the number 1.5"),
        ("1...100000000", "a list of 100000000 numbers is too long"),
        ("{ name: 1 }.nme", "the object has no field 'nme'; it has 'name' (did you mean 'name'?)"),
        ("null.name", "null has no field 'name'; with ?.name the result would be null"),
        ('"abc".lenght', "a string has no member 'lenght' (did you mean 'length'?)"),
        ("[1, 2][2]", "there is nothing at place 2: the last one is 1"),
        ("[1, 2][-1]", "there is nothing at place -1: the last one is 1"),
        ("[][0]", "there is nothing at place 0: it is empty"),
        ("[1][0.5]", "a place in a list is a whole number, not the number 0.5"),
        ('{ a: 1 }["b"]', "the object has no field 'b'"),
        ("[].first", "an empty list has no first item"),
        ("[1].first(2)", "the field 'first' is not a function"),
        ('"a".upper(1)', ".upper() of a string does not take 1 values"),
        ('json("{")', "this is not JSON"),
        ('json("NaN")', "this is not JSON"),
        (r'json("[1, 2\n")', "this is not JSON: Expecting ',' delimiter at line 2, column 1: the text ends there"),
        (r'json("\n ")', "this is not JSON: Expecting value at line 2, column 2 (it is empty)"),
        (r'json("[1,\n\n 2 3]")', "this is not JSON: Expecting ',' delimiter at line 3, column 4: 2 3]"),
        ('json("1e999")', "a number in this JSON is too large at line 1, column 1: 1e999"),
        (
            r'json("{ \"1e999\": 1.5,\n  \"a\": -1e999 }")',
            'a number in this JSON is too large at line 2, column 8: "a": -1e999 }',
        ),
        ('json("[1, " + "7".repeat(4301) + "]")', "a number in this JSON is too large at line 1, column 5: [1, 777"),
        ('json("7".repeat(4301) + ".5")', "a number in this JSON is too large at line 1, column 1: 777"),
        ('json("7".repeat(4300)) * 10', "7... * 10 has more than 4300 digits"),
        ('-json("9".repeat(4300)) - 1', "9... - 1 has more than 4300 digits"),
        ('"a".padStart(100000000000)', "a string cannot be padded with 99999999999 characters"),
        ("1...10000000000000000000000", "a list of 10000000000000000000000 numbers is too long"),
        ("len(3)", "len() is for strings, lists and objects, and this is the number 3"),
    ],
)
def test_what_has_no_meaning_is_an_error_that_names_it(expression: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(WrongValue) as caught:
        value_of(tmp_path, expression)

    assert said in str(caught.value)
    assert caught.value.place is not None
    assert caught.value.place.line == 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{ a: 1 }?.b", None),
        ("null?.b", None),
        ("{ a: { b: 2 } }?.a?.b", 2),
        ("[1]?.[4]", None),
        ("null?.[4]", None),
        ('{ a: 1 }?.["b"]', None),
        ("null?.trim()", None),
    ],
)
def test_asking_with_a_question_mark_gives_null_for_what_is_missing(
    expression: str, expected: Any, tmp_path: Path
) -> None:
    assert value_of(tmp_path, expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('"Grüße 🎈".length', 7),
        ('" a b ".trim()', "a b"),
        ('"a,b,,c".split(",")', ["a", "b", "", "c"]),
        ('" a  b\\n".split()', ["a", "b"]),
        ('"abc".split("")', ["a", "b", "c"]),
        ('"x\\ny\\n".lines()', ["x", "y"]),
        ('"aXbX".replace("X", "-")', "a-b-"),
        ('"straße".upper()', "STRASSE"),
        ('"ABC".toLowerCase()', "abc"),
        ('"abc".startsWith("ab") && "abc".endsWith("bc") && "abc".includes("b") && !"abc".contains("z")', True),
        ('"abcabc".indexOf("c")', 2),
        ('"abc".indexOf("z")', -1),
        ('"abcdef".slice(1, 3)', "bc"),
        ('"abcdef".slice(-2)', "ef"),
        ('"ab".repeat(3)', "ababab"),
        ('"7".padStart(3, "0")', "007"),
        ('"7".padEnd(3)', "7  "),
        ('" 3.5 ".number() + 1', 4.5),
        ("[3, 1, 2].sort()", [1, 2, 3]),
        ('["b", "a"].sort()', ["a", "b"]),
        ("[1, 2, 3].reverse()", [3, 2, 1]),
        ("[1, 2, 3].first + [1, 2, 3].last", 4),
        ("[1, [2], 3].flat()", [1, 2, 3]),
        ("[1, 2].concat([3], 4)", [1, 2, 3, 4]),
        ('[1, 2, 3].join("-")', "1-2-3"),
        ("[1, 2, 3].join()", "1, 2, 3"),
        ("[[1], { a: 1 }].includes({ a: 1 })", True),
        ("[1, 2, 3].indexOf(2)", 1),
        ("[1, 2, 3].sum()", 6),
        ("[1, 2, 3].at(-1)", 3),
        ("[1, 2, 3].at(9)", None),
        ("[5, 6, 7].slice(1)", [6, 7]),
        ("[1, 2].length + len([1])", 3),
        ("{ a: 1, b: 2 }.keys()", ["a", "b"]),
        ("{ a: 1, b: 2 }.values()", [1, 2]),
        ("{ a: 1 }.entries()", [["a", 1]]),
        ('{ a: 1 }.has("a")', True),
        ('{ a: 1 }.get("b", 7)', 7),
        ("{ a: 1, b: 2 }.merge({ b: 3 })", {"a": 1, "b": 3}),
        ("{ a: 1 }.length", 1),
        ('{ length: "mine", keys: 1 }.length', "mine"),
        ("(2.5).round()", 3),
        ("(-2.5).round()", -3),
        ("(2.345).round(2)", 2.35),
        ("(9007199254740993).round()", 9007199254740993),
        ("(9007199254740993).round(2)", 9007199254740993),
        ("(1250).round(-2)", 1300),
        ("(1e300).round(20)", 1e300),
        ("(0.5).round(1000000000)", 0.5),
        ("(2.9).floor() + (2.1).ceil() + (-2).abs()", 7),
        (
            'typeof(null) + typeof(true) + typeof(1) + typeof("") + typeof([]) + typeof({})',
            "nullbooleannumberstringarrayobject",
        ),
        ('cat({ a: [1, "ü"] })', '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'),
        ('json("{\\"a\\": [1, 2.0]}")', {"a": [1, 2]}),
        ("keys({ b: 1, a: 2 }) + values({ b: 1, a: 2 })", ["b", "a", 1, 2]),
    ],
)
def test_members_and_functions_do_what_people_expect(expression: str, expected: Any, tmp_path: Path) -> None:
    assert value_of(tmp_path, expression) == expected


def test_lists_and_objects_can_be_changed_in_place(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun main() {
            var list = [1, 2]
            list.push(3)
            list.push(4, 5)
            list[0] = 10
            var last = list.pop()
            list.insert(1, "x")
            var gone = list.remove(2)
            var object = { n: 1, deep: { m: 1 } }
            object.n++
            object.deep.m = object.deep.m + 5
            object["new"] = true
            object.n = object.n * 10
            var same = object
            same.shared = 1
            return { list, last, gone, object, was: object.n--, kept: object.remove("new") }
        }
        """,
    )

    assert main() == {
        "list": [10, "x", 3, 4],
        "last": 5,
        "gone": 2,
        "object": {"n": 19, "deep": {"m": 6}, "shared": 1},
        "was": 20,
        "kept": True,
    }


def test_functions_can_be_given_to_lists(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun double(x) { return x * 2 }
        fun big(x) { return x > 2 }
        fun plus(a, b) { return a + b }
        fun size(word) { return word.length }
        fun main() {
            return [[1, 2].map(double), [1, 2, 3].filter(big), [1, 2, 3].reduce(plus, 0), ["ccc", "a", "bb"].sort(size)]
        }
        """,
    )

    assert main() == [[2, 4], [3], 6, ["a", "bb", "ccc"]]


def test_the_right_side_is_looked_at_only_if_it_matters(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun main() {
            var seen = []
            var a = true || seen.push("never")
            var b = null && seen.push("never")
            var c = 0 || seen.push("once")
            return { a, b, c, seen }
        }
        """,
    )

    assert main() == {"a": True, "b": None, "c": 1, "seen": ["once"]}


def test_blocks_have_names_of_their_own(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun main(flag) {
            var x = 1
            if flag { var x = 2; var y = "then"; x = 3 } else { var y = "else" }
            for var x in [7, 8] { var z = x }
            while x < 2 { var x = 99; break }
            try { var x = 5; throw "no" } catch x { var y = x.message }
            return x
        }
        """,
    )

    assert (main(True), main(False)) == (1, 1)


def test_loops_go_through_lists_lines_fields_and_ranges(tmp_path: Path) -> None:
    main = function_of(
        tmp_path,
        """
        fun main() {
            var seen = []
            for var n in 1...3 { if n == 2 { continue }; seen.push(n) }
            for var line in "a\\nb" { seen.push(line) }
            for var field in { k: 1, l: 2 } { seen.push(field) }
            for var [a, b] in [[1, 2], [3, 4]] { seen.push(a * b) }
            for var { id } in [{ id: "x" }] { seen.push(id) }
            var growing = [1]
            for var n in growing { growing.push(n + 1) }
            while true { seen.push("once"); break }
            return seen + growing
        }
        """,
    )

    assert main() == [1, 3, "a", "b", "k", "l", 2, 12, "x", "once", 1, 2]


@pytest.mark.parametrize(
    "name", ["class", "def", "lambda", "None", "pw", "pw_x", "print_", "error", "default_", "__name__", "_pw_x"]
)
def test_a_name_of_python_is_a_name_like_any_other(name: str, tmp_path: Path) -> None:
    text = f"fun main({name}) {{ var {name}_ = {name} + 1; {name} = {name}_ + 1; return [{name}, {name}_] }}\n"

    assert function_of(tmp_path, text)(1) == [3, 2]


def test_text_is_unicode_throughout(tmp_path: Path) -> None:
    main = function_of(tmp_path, "fun main(a) { return \"«${a}» 漢字 🎈\" + 'ü$a' }\n")

    assert main("é\u200d👩‍👩‍👧") == "«é\u200d👩‍👩‍👧» 漢字 🎈ü$a"


def test_only_a_new_line_ends_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x0cd\r\ne\n\nf"

    assert value_of(tmp_path, "a.lines()", text) == ["a\u2028b\x85c\x0cd", "e", "", "f"]
    assert value_of(tmp_path, '["".lines(), "\\n".lines()]') == [[], [""]]


def test_numbers_beyond_a_fractions_reach_stay_exact(tmp_path: Path) -> None:
    big = 2**200 + 1

    assert value_of(tmp_path, "a + 1 - 1", big) == big
    assert json.loads(value_of(tmp_path, "cat(a)", big)) == big


def test_every_member_has_a_place_in_the_reference() -> None:
    reference = (DOCS / "language" / "reference.md").read_text(encoding="utf-8")

    missing = [name for methods in METHODS.values() for name in methods if f"{name}(" not in reference]
    assert missing == []
