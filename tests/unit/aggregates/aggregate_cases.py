"""One case or more for every aggregate. The tests of results, retractions and orders of rows run all of them."""

from dataclasses import dataclass

from statebed.aggregates import functions as sb
from statebed.aggregates.aggregate import Aggregate, EventTime

TIME = "ts"


@dataclass(frozen=True)
class Case:
    """An aggregate over columns `y` and `x` (floats), `n` (integers), `price` (decimals), `flag`, `word` and `ts`."""

    aggregate: Aggregate
    duckdb: str = ""
    """The same in DuckDB's SQL, if it uses only `y` and `x`, or only `n`."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(TIME if column is EventTime.EVENT_TIME else str(column) for column in self.aggregate.inputs)


CASES = {
    "rows": Case(sb.count()),
    "values": Case(sb.count("flag")),
    "sum_y": Case(sb.sum("y")),
    "sum_n": Case(sb.sum("n"), "sum(n)::bigint"),
    "sum_price": Case(sb.sum("price")),
    "sum_distinct": Case(sb.sum_distinct("n"), "sum(distinct n)::bigint"),
    "sum_distinct_price": Case(sb.sum_distinct("price")),
    "mean_y": Case(sb.mean("y"), "avg(y)"),
    "mean_n": Case(sb.mean("n"), "avg(n)"),
    "mean_price": Case(sb.mean("price")),
    "min_y": Case(sb.min("y"), "min(y)"),
    "min_n": Case(sb.min("n"), "min(n)"),
    "min_word": Case(sb.min("word")),
    "max_y": Case(sb.max("y"), "max(y)"),
    "any_value": Case(sb.any_value("n"), "min(n)"),
    "any_price": Case(sb.any_value("price")),
    "min_by": Case(sb.min_by("y", "x"), "first(y order by x, y nulls last) filter (x is not null)"),
    "min_word_by": Case(sb.min_by("word", "y")),
    "max_by": Case(sb.max_by("y", "x"), "first(y order by x desc, y nulls last) filter (x is not null)"),
    "max_word_by": Case(sb.max_by("word", "y")),
    "first": Case(sb.first("n")),
    "last": Case(sb.last("n")),
    "mode": Case(sb.mode("word")),
    "count_distinct": Case(sb.count_distinct("y"), "count(distinct y)"),
    "approx_percentile": Case(sb.approx_percentile("y", 0.3)),
    "median": Case(sb.median("x"), "median(x)"),
    "percentile": Case(sb.percentile("y", 0.9), "quantile_cont(y, 0.9)"),
    "collect_list": Case(sb.collect_list("word")),
    "collect_set": Case(sb.collect_set("y"), "coalesce(list_sort(list(distinct y) filter (y is not null)), [])"),
    "string_agg": Case(sb.string_agg("word", ", ")),
    "bool_and": Case(sb.bool_and("flag")),
    "bool_or": Case(sb.bool_or("flag")),
    "bit_and": Case(sb.bit_and("n"), "bit_and(n)"),
    "bit_or": Case(sb.bit_or("n"), "bit_or(n)"),
    "bit_xor": Case(sb.bit_xor("n"), "bit_xor(n)"),
    "var_pop": Case(sb.var_pop("y"), "var_pop(y)"),
    "var_samp": Case(sb.var_samp("y"), "var_samp(y)"),
    "stddev_pop": Case(sb.stddev_pop("y"), "stddev_pop(y)"),
    "stddev_samp": Case(sb.stddev_samp("y"), "stddev_samp(y)"),
    "covar_pop": Case(sb.covar_pop("y", "x"), "covar_pop(y, x)"),
    "covar_samp": Case(sb.covar_samp("y", "x"), "covar_samp(y, x)"),
    "corr": Case(sb.corr("y", "x"), "corr(y, x)"),
    "regr_count": Case(sb.regr_count("y", "x"), "regr_count(y, x)"),
    "regr_avgx": Case(sb.regr_avgx("y", "x"), "regr_avgx(y, x)"),
    "regr_avgy": Case(sb.regr_avgy("y", "x"), "regr_avgy(y, x)"),
    "regr_sxx": Case(sb.regr_sxx("y", "x"), "regr_sxx(y, x)"),
    "regr_syy": Case(sb.regr_syy("y", "x"), "regr_syy(y, x)"),
    "regr_sxy": Case(sb.regr_sxy("y", "x"), "regr_sxy(y, x)"),
    "regr_slope": Case(sb.regr_slope("y", "x"), "regr_slope(y, x)"),
    "regr_intercept": Case(sb.regr_intercept("y", "x"), "regr_intercept(y, x)"),
    "regr_r2": Case(sb.regr_r2("y", "x"), "regr_r2(y, x)"),
}
