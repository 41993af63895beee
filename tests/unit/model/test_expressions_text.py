"""Predicates as text: parsed as SQL does, with positions in every error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.expressions import Predicate, bind, col, evaluate, parse_where
from scankv.model.expressions.literals import literal_of
from scankv.model.expressions.nodes import MAX_DEPTH, Comparison, Constant, FieldPath, Operator, all_of
from tests.support.examples import examples

UTC_NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)

# Columns for the comparison with DuckDB. No NaN: in DuckDB it is greater than all numbers.
VALUES: dict[str, list[Any]] = {
    "i": [-(2**63), -1, 0, 1, 2**63 - 1, None],
    "u": [0, 1, 254, 255, None],
    "f": [-1.5, -0.0, 0.0, 0.1, 1e300, float("inf"), None],
    "t": ["", "a", "ab", "b%", "it's", "\u00e9", "a\nb", "a_b", "\U00020bb7b", "a.b\\", "ba(b", None],
    "m": [Decimal("-1.50"), Decimal("0.10"), Decimal("2.00"), None],
    "d": [dt.date(1970, 1, 1), dt.date(2026, 1, 31), None],
    "w": [dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31, 12, 0, 0, 1), None],
    "b": [True, False, None],
}
LITERALS = {
    "i": ["-9223372036854775808", "-1", "0", "1.0", "9223372036854775807", "0.5", "-1.25", "9223372036854775808"],
    "u": ["255", "300", "-1", "0.5", "254.9999", "18446744073709551616", "1.0"],
    "f": ["-1.5", "0", "0.1", "-0.0", "1e300", "1"],
    "t": ["''", "'a'", "'ab'", "'it''s'", "'\u00e9'"],
    "m": ["-1.5", "0.1", "2", "2.00", "0.105", "-1.4999", "10000", "-99999.999"],
    "d": ["DATE '1970-01-01'", "date '2026-01-31'", "TIMESTAMP '2026-01-31 00:00:00.000001'"],
    "w": ["TIMESTAMP '2026-01-31 12:00:00'", "timestamp '2026-01-31 12:00:00.000001'", "DATE '2026-01-31'"],
    "b": ["TRUE", "false"],
}
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("m", pa.decimal128(6, 2)),
        ("d", pa.date32()),
        ("w", pa.timestamp("us")),
        ("b", pa.bool_()),
        ("s", pa.struct([("i", pa.int64()), ("t", pa.string())])),
    ]
)
rows = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in VALUES.items()}
    | {"s": st.none() | st.fixed_dictionaries({name: st.sampled_from(VALUES[name]) for name in ("i", "t")})}
)


_PATTERNS = st.lists(
    st.sampled_from(["%", "_", "a", "b", "!%", "!_", "!!", "\n", "\u00e9", "\U00020bb7", ".", "(", "it''s", "[a]"]),
    max_size=4,
).map("".join)


@st.composite
def leaves(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*VALUES, "s.i", "s.t"]))
    literal = st.sampled_from([*LITERALS[name[-1]], "NULL"])
    shape = draw(
        st.sampled_from(
            ["{n} {o} {x}", "{x} {o} {n}", "{n} {not}IN ({x}, {y})", "{n} {not}BETWEEN {x} AND {y}", "{n} IS {not}NULL"]
            + (["b"] if name == "b" else [])
            + (["{n} {not}LIKE '{p}'", "{n} {not}like '{p}%'", "{n} LIKE '%{p}%'"] if name[-1] == "t" else [])
            + (["{n} {not}LIKE '{q}'", "{n} {not}LIKE '{q}' ESCAPE '!'"] * 2 if name[-1] == "t" else [])
        )
    )
    return shape.format_map(
        {
            "n": name,
            "o": draw(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])),
            "x": draw(literal),
            "y": draw(literal),
            "not": draw(st.sampled_from(["", "NOT "])),
            "q": draw(_PATTERNS),
            "p": draw(st.sampled_from(["a", "b", "it''s", "\u00e9"])),
        }
    )


texts = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " or "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("NOT ({})".format),
        inner.map("NOT {}".format),
    ),
    max_leaves=5,
)


@given(st.lists(rows, min_size=1, max_size=6), texts)
@examples(8)
def test_text_is_answered_as_duckdb_answers_it(table: list[dict[str, Any]], text: str) -> None:
    batch = pa.RecordBatch.from_pylist(table, SCHEMA)
    answer = evaluate(bind(parse_where(text, SCHEMA), SCHEMA), batch)
    asked = pa.Table.from_batches([batch])
    with duckdb.connect() as connection:
        connection.register("asked", asked)
        expected = [found for (found,) in connection.execute(f"SELECT ({text}) FROM asked").fetchall()]
    assert answer.to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("score > 100 and player in ('a', 'b')", (col("score") > 100) & col("player").is_in(["a", "b"])),
        ("a = 1 OR b = 2 AND NOT c = 3", (col("a") == 1) | ((col("b") == 2) & ~(col("c") == 3))),
        ("(a = 1 or b = 2) and c", ((col("a") == 1) | (col("b") == 2)) & col("c")),
        ("a.b.c <> 'x'", col("a")["b"]["c"] != "x"),
        ('"we ird"."a.b" = 1 and "and" = 2', (col("we ird")["a.b"] == 1) & (col("and") == 2)),
        ("Score >= -1.50", col("Score") >= Decimal("-1.50")),
        ("x < 1e3", col("x") < 1000.0),
        ("x > 18446744073709551615", col("x") > 2**64 - 1),
        ("x in (1, 2.5, NULL)", col("x").is_in([Decimal(1), Decimal("2.5"), None])),
        ("x in (1, 1e3, NULL)", col("x").is_in([1.0, 1000.0, None])),
        ("x in (0.5, 1e3)", col("x").is_in([Decimal("0.5")]) | col("x").is_in([1000.0])),
        ("x in (NULL)", col("x").is_in([None])),
        ("x in (1, 18446744073709551615)", col("x").is_in([1, 2**64 - 1])),
        ("100 >= x", col("x") <= 100),
        ("a = b", col("a") == col("b")),
        ("t like 'ab%'", col("t").starts_with("ab")),
        ("t like '%ab%' -- why", col("t").contains("ab")),
        ("t like 'ab'", col("t") == "ab"),
        ("t like ''", col("t") == ""),
        ("t like '%'", col("t").starts_with("")),
        ("t like '%ab'", col("t").ends_with("ab")),
        ("t like 'a_b'", col("t").like("a_b")),
        ("t like '%a%b'", col("t").like("%a%b")),
        ("t like 'a%__%_________%b'", col("t").like("a" + "_" * 11 + "%b")),
        ("t like 'a!%!_!!' escape '!'", col("t") == "a%_!"),
        ("t like 'a!_%' escape '!'", col("t").starts_with("a_")),
        ("t not like '!%_%' escape '!'", ~col("t").like("\\%_%", "\\")),
        ("t like 'a\\%' escape ''", col("t").starts_with("a\\")),
        ("t like 'a\\%' escape '\\'", col("t") == "a%"),
        ("t like null", Comparison(FieldPath(("t",)), Operator.EQUAL, literal_of(None))),
        ("t like 'a%%' or t like '%%a%%'", col("t").starts_with("a") | col("t").contains("a")),
        ("d = DATE '2026-01-31'", col("d") == dt.date(2026, 1, 31)),
        ("d = DATE '+10000-01-01'", col("d") == pa.scalar(2_932_897, pa.date32())),
        ("d = DATE '+100000-01-01'", col("d") == pa.scalar(35_804_722, pa.date32())),
        ("d = DATE '-0001-12-31'", col("d") == pa.scalar(-719_529, pa.date32())),
        ("w = TIMESTAMP '+100000-01-01'", col("w") == pa.scalar(35_804_722 * 86_400_000_000, pa.timestamp("us"))),
        ("timestamp > TIMESTAMP '2026-01-31T12:00:00Z'", col("timestamp") > UTC_NOON),
        ("w = TIMESTAMP '2026-01-31 14:00:00+02:00'", col("w") == UTC_NOON),
        ("date = 1 and key = 2 and level = 3", all_of([col("date") == 1, col("key") == 2, col("level") == 3])),
        ("true", Constant(True)),
        ("not null", ~Constant(None)),
        ("x\n =\t1", col("x") == 1),
    ],
)
def test_text_is_read_as_the_predicate_it_says(text: str, predicate: Predicate) -> None:
    assert parse_where(text) == predicate


def test_nanoseconds_of_a_timestamp_are_kept() -> None:
    predicate = parse_where("w = TIMESTAMP '2026-01-31 12:00:00.123456789'")
    assert "123456789" in repr(predicate)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a value, found the end"),
        ("score >", 1, 8, "expected a value, found the end"),
        ("score > and", 1, 9, 'expected a value, found "and"'),
        ("score >> 3", 1, 8, "expected a value"),
        ("a = 1 b = 2", 1, 7, 'expected AND, OR or the end, found "b"'),
        ("a = 1\n  and (b = 2", 2, 13, "expected ), found the end"),
        ("a = 'it''s' and b = 'x", 1, 21, "never closed"),
        ("upper(a) = 'X'", 1, 6, 'found "("'),
        ("a + 1 = 2", 1, 3, 'found "+"'),
        ("1 = 1", 1, 5, "compared with a column"),
        ("a in ()", 1, 7, "expected a value"),
        ("a in (select b)", 1, 7, "expected a value"),
        ("a between 1 or 2", 1, 13, "expected AND"),
        ("a is true", 1, 6, "expected NULL"),
        ("a like b", 1, 8, "expected a pattern in single quotes"),
        ("a like 'a\\_b'", 1, 8, "a LIKE pattern with a backslash needs ESCAPE"),
        ("a like 'a!' escape '!'", 1, 8, "ends with its escape character"),
        ("a like 'a' escape 'xx'", 1, 8, "ESCAPE must be one character, or none, not 2"),
        ("a like 'a' escape b", 1, 19, "expected a character in single quotes after ESCAPE"),
        ("a like 'a' 'b'", 1, 12, "expected AND, OR or the end"),
        ("a not = 1", 1, 7, "expected IN, BETWEEN or LIKE"),
        ("d = DATE '2026-13-01'", 1, 10, "write DATE '2026-01-31'"),
        ("d = DATE '+10000-13-01'", 1, 10, "write DATE '2026-01-31'"),
        ("d = DATE '+999999999999-01-01'", 1, 10, "write DATE '2026-01-31'"),
        ("d = TIMESTAMP 'noon'", 1, 15, "write TIMESTAMP"),
        ("a = 0x1f", 1, 6, 'found "x1f"'),
        ("a = $1", 1, 5, "expected a value"),
        ("a = 1; drop table b", 1, 6, 'found ";"'),
        ("a::int = 1", 1, 2, 'found "::"'),
        ("a = " + "1" * 39, 1, 5, "38 digits"),
        ("a = -'x'", 1, 6, "expected a number"),
        ("a. = 1", 1, 4, "name of a field"),
        ("a = 1 -- it's\n and b = 'x", 2, 10, "a quote that is opened here is never closed"),
        ("a = '/*' /* b", 1, 10, "a comment that is opened here is never closed"),
        ("a = 1e999", 1, 5, "too large for a float"),
        ("b = 1 and a = '\ud800'", 1, 15, "this text is not valid UTF-8"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_where(text)
    first, shown, caret, *_ = str(raised.value).split("\n")
    assert first.startswith(f"the predicate, line {line}, column {column}: ")
    assert message in first
    assert shown.strip() == text.split("\n")[line - 1].strip()
    assert caret == " " * (column + 1) + "^"


def test_an_error_in_a_long_line_shows_the_place_only() -> None:
    text = "x" * 500 + " = 'a' ! " + "y" * 500
    with pytest.raises(UsageError) as raised:
        parse_where(text)
    _, shown, caret, supported = str(raised.value).split("\n")
    assert shown[caret.index("^")] == "!"
    assert len(shown) < 80
    assert supported.startswith("supported: ")


def test_a_day_is_no_instant_of_a_column_with_a_time_zone() -> None:
    with pytest.raises(SchemaMismatch, match="give a timestamp with a time zone"):
        parse_where("z >= DATE '2026-01-31'", pa.schema([("z", pa.timestamp("us", "UTC"))]))


def test_a_pattern_that_is_too_long_has_its_place() -> None:
    with pytest.raises(UsageError, match=r"line 1, column 8: the LIKE pattern has 1,002 characters; .* 1,000"):
        parse_where("a like '" + "%_" * 501 + "'")
    with pytest.raises(UsageError, match=r"line 2, column 1: .*65,536 bytes of searched text"):
        parse_where("a like\n'%" + "x" * 2**16 + "x%'")


def test_with_a_schema_wrong_columns_and_types_have_their_place_too() -> None:
    with pytest.raises(SchemaMismatch, match=r'line 2, column 6: "j" is not a column') as raised:
        parse_where("i = 1\n and j = 2", SCHEMA)
    assert raised.value.details == {"column": "j"}
    with pytest.raises(SchemaMismatch, match=r"line 1, column 11: .*type string"):
        parse_where("b and not i = 'x'", SCHEMA)
    with pytest.raises(SchemaMismatch, match=r"line 1, column 7: .*type string"):
        parse_where("b and i in (1, 'x')", SCHEMA)


@pytest.mark.parametrize(
    ("text", "column", "found"),
    [
        ("i == 1", 3, "=="),
        ("b and t ilike 'x'", 9, "ilike"),
        ("i isnull", 3, "isnull"),
        ("i + 1 = 2", 3, "+"),
        ("upper(t) = 'X'", 6, "("),
        ("t = x'10'", 6, "'10'"),
        ("i = 1_000", 6, "_000"),
    ],
)
def test_with_a_schema_too_text_that_cannot_be_read_is_refused_where_reading_ends(
    text: str, column: int, found: str
) -> None:
    with pytest.raises(UsageError, match=f"line 1, column {column}: ") as raised:
        parse_where(text, SCHEMA)
    assert f'found "{found}"' in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["(" * 20_000 + "a" + ")" * 20_000, "not " * 20_000 + "a", " and ".join(["a"] * 20_000), "a = '" + "x" * 2**22],
    ids=["parentheses", "not", "and", "length"],
)
@pytest.mark.represented_by("parentheses")
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_where(text)


def test_as_much_depth_as_is_allowed_is_read() -> None:
    assert parse_where("(" * (MAX_DEPTH - 1) + "a = 1" + ")" * (MAX_DEPTH - 1)) == (col("a") == 1)
