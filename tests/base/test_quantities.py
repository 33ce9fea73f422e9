"""Claims about quantities as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import LEAST, MOST, number, parse_quantity, whole_number


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("400Gb/s", "bytes per second", 50e9),
        ("400 Gbit/s", "bytes per second", 50e9),
        ("400Gbps", "bytes per second", 50e9),
        ("400GB/s", "bytes per second", 400e9),
        ("3.35TB/s", "bytes per second", 3.35e12),
        ("1 GiB/s", "bytes per second", 2**30),
        ("80GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("8 Mb", "bytes", 1e6),
        ("5us", "seconds", 5e-6),
        ("1.5 ms", "seconds", 1.5e-3),
        ("2e-6 s", "seconds", 2e-6),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("1.979 PFLOPS", "FLOP/s", 1.979e15),
        ("700 W", "watts", 700),
    ],
)
def test_bits_and_bytes_thousands_and_1024s_are_kept_apart(text, quantity, value):
    assert parse_quantity(text, quantity) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("quantity", "units"),
    [
        ("seconds", "s sec second seconds"),
        ("FLOP/s", "FLOP/s FLOPs/s FLOPS FLOPs flops flop/s"),
        ("joules", "J joule joules"),
        ("watts", "W watt watts"),
        ("bytes", "B byte bytes"),
    ],
)
def test_every_spelling_of_a_unit_means_the_same(quantity, units):
    assert {parse_quantity(f"3 {unit}", quantity) for unit in units.split()} == {3.0}


def test_a_number_is_taken_as_si():
    assert parse_quantity(5e-6, "seconds") == 5e-6


@pytest.mark.parametrize(("prefixes", "base"), [("kMGTPE", 1000), (["Ki", "Mi", "Gi", "Ti"], 1024)])
def test_each_prefix_is_a_thousand_or_1024_times_the_one_before(prefixes, base):
    found = [parse_quantity(f"1 {prefix}B", "bytes") for prefix in prefixes]
    assert found == [base**power for power in range(1, len(prefixes) + 1)]


def test_each_prefix_of_small_numbers_is_a_thousandth_of_the_one_before():
    found = [parse_quantity(f"1 {prefix}s", "seconds") for prefix in "munp"]
    assert found == [1e-3, 1e-6, 1e-9, 1e-12]


def test_nothing_is_nothing_in_every_unit():
    assert parse_quantity("0", "seconds") == parse_quantity("0 GiB", "bytes") == 0


@pytest.mark.parametrize(
    ("text", "quantity", "said"),
    [
        ("80GiB", "seconds", "'GiB', which measures bytes"),
        ("400Gb", "bytes per second", "'Gb', which measures bytes"),
        ("5 parsec", "seconds", "'parsec', which is unknown"),
        ("5 Gis", "seconds", "is unknown"),
        ("80", "bytes", "has no unit"),
        ("fast", "FLOP/s", "does not begin with a number"),
        ("nan s", "seconds", "is not a number"),
        ("nan", "seconds", 'is not a number: write seconds as in "5us"'),
        ("inf", "bytes", "is not finite"),
        ("1e400s", "seconds", "is not finite"),
        ("1e300 TB", "bytes", "beyond what can be calculated with"),
        ("1e-320 FLOP/s", "FLOP/s", "beyond what can be calculated with"),
        (10**400, "bytes", "beyond what can be calculated with"),
        ("٣ s", "seconds", "does not begin with a number"),
        ("-5us", "seconds", "is negative"),
        ("-5", "seconds", "is negative"),
        (math.nan, "bytes", "is not a number"),
        (-1, "bytes", "is negative"),
        (math.inf, "bytes", "is not finite"),
        (True, "bytes", "not a quantity"),
        (None, "bytes", "not a quantity"),
    ],
)
def test_what_is_no_such_quantity_is_refused_in_one_sentence_that_shows_how_to_write_it(text, quantity, said):
    with pytest.raises(UserError, match=said) as error:
        parse_quantity(text, quantity, "memory")
    assert str(error.value).startswith("memory = ")


@given(st.floats(1e-6, 1e6), st.sampled_from(["", "k", "M", "G", "T"]))
def test_eight_bits_are_one_byte_with_every_prefix(number, prefix):
    bits = parse_quantity(f"{number!r}{prefix}b/s", "bytes per second")
    assert 8 * bits == pytest.approx(parse_quantity(f"{number!r} {prefix}B/s", "bytes per second"), rel=1e-12)


@pytest.mark.parametrize("text", ["8", "+8", " 8 ", "-8", "008"])
def test_a_whole_number_is_read_as_python_reads_it(text):
    assert whole_number(text) == int(text)


@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "8 8", "1_000", "٣", "1" + 18 * "0", "9" * 5000])
def test_what_is_no_whole_number_of_a_few_ascii_digits_is_refused_in_a_short_sentence(text):
    with pytest.raises(UserError, match="^--gpus: .*(not a whole number|no number of up to 18)") as error:
        whole_number(text, "--gpus")
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("text", ["1e-320", "5e-324", "1e308", "-1e-300", "x", "٣", "9" * 300, "x" * 10**6])
def test_what_no_clock_can_calculate_with_is_refused(text):
    with pytest.raises(UserError, match="not a number|beyond what can be calculated with") as error:
        number(text, "--days")
    assert len(str(error.value)) < 250


@given(st.floats(LEAST, MOST) | st.just(0.0))
def test_every_number_within_the_limits_is_read_as_python_reads_it(value):
    assert number(repr(value)) == parse_quantity(value, "seconds") == value
