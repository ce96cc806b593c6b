"""Random queries from a small grammar, each determined by its seed."""

import random
from dataclasses import dataclass, field

MODES = ("append", "update", "complete")
AGGREGATES = (
    "count(*)", "count(x)", "sum(v)", "sum(x)", "min(v)", "max(x)", "avg(v)", "avg(x)", "bit_or(g)",
    "sum(v) filter (where g > 0)", "count_if(v > 100)", "max(v) - min(v)", "sum(v) / count(*)", "bool_and(v > 0)",
    "stddev_pop(v)", "coalesce(sum(x), 0.0)", "cast(avg(v) as bigint)", "max(length(k))", "kurtosis(v)", "first(v)",
)  # fmt: skip
"""The last two are refused."""
CONDITIONS = (
    "v > 50", "v between 10 and 300", "k = 'a'", "k in ('a', 'b')", "k is not null", "x is null or x > 2",
    "g <> 1", "k like 'a%' or v > 200", "ts > timestamp '2024-03-10T06:30:30Z'", "v % 2 = 0",
)  # fmt: skip
KEYS = ("k", "g", "k, g", "v % 4", "upper(k)", "case when v > 100 then 'big' else 'small' end")
SPANS = ("10 seconds", "20 seconds", "45 seconds", "1 minute")


@dataclass(frozen=True)
class GeneratedQuery:
    """SQL over the views `a` and `b`, and an output mode."""

    seed: int
    sql: str
    mode: str


@dataclass
class Grammar:
    """Chooses the parts of one query."""

    seed: int
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def query(self) -> GeneratedQuery:
        """Return the query of this seed."""
        shape = self.chance.choice(
            [self.windowed, self.windowed, self.plain, self.joined, self.distinct, self.united, self.chained, self.rows]
        )
        sql, modes = shape()
        return GeneratedQuery(self.seed, sql, self.chance.choice(modes))

    # ---- shapes ------------------------------------------------------------------------------------------------------

    def rows(self) -> tuple[str, tuple[str, ...]]:
        return f"select k, g, v + g as w, x from {self.source('a')} {self.where()}", ("append", "update")

    def windowed(self, table: str | None = None) -> tuple[str, tuple[str, ...]]:
        window, kind = self.window("ts")
        key, names = self.key()
        sql = (
            f"select {kind}.start as s, {kind}.end as e{names}, {self.aggregates()} from {table or self.source('a')} "
            f"{self.where()} group by {window}{key} {self.having()}"
        )
        return sql, ("append",) if kind == "session_window" else ("append", "append", "update")

    def plain(self) -> tuple[str, tuple[str, ...]]:
        key = self.chance.choice(KEYS)
        grouping = self.chance.choice([key, key, f"rollup({key})"]) if key in {"k", "g", "k, g"} else key
        select = f"select {self.aggregates()}" if "case" in key or "%" in key else f"select {key}, {self.aggregates()}"
        sql = f"{select} from {self.source('a')} {self.where()} group by {grouping} {self.having()}"
        return sql, ("update", "complete")

    def joined(self) -> tuple[str, tuple[str, ...]]:
        low, high = sorted(self.chance.sample([-20, -10, 0, 5, 15, 30], 2))
        kind = self.chance.choice(["join", "join", "left join", "right join", "left semi join"])
        extra = self.chance.choice(["", "", " and l.v < r.v", " and l.g = r.g"])
        columns = "l.k, l.v, l.ts" if "semi" in kind else "l.k, l.v, r.v as w, l.ts, r.ts as us"
        condition = (
            f"l.k = r.k and r.ts {self.chance.choice(['>=', '>'])} l.ts + interval {low} seconds "
            f"and r.ts {self.chance.choice(['<=', '<'])} l.ts + interval {high} seconds{extra}"
        )
        sides = [f"(select * from {name} where {self.chance.choice(CONDITIONS)} and k is not null)" for name in "ab"]
        return f"select {columns} from {sides[0]} l {kind} {sides[1]} r on {condition}", ("append",)

    def distinct(self) -> tuple[str, tuple[str, ...]]:
        columns = self.chance.choice(["k, ts", "k, g", "g, ts", "k, g, ts"])
        return f"select distinct {columns} from {self.source('a')} {self.where()}", ("append",)

    def united(self) -> tuple[str, tuple[str, ...]]:
        table = f"(select * from a {self.where()} union all select * from b {self.where()})"
        return self.windowed(table)

    def chained(self) -> tuple[str, tuple[str, ...]]:
        values = "sum(v) as v, max(x) as x"
        inner = f"select window as w, k, {values} from a {self.where()} group by window(ts, '10 seconds'), k"
        span = self.chance.choice(["30 seconds", "1 minute"])
        key = self.chance.choice(["", ", k"])
        sql = (
            f"select window.start as s{key}, sum(v) as v, max(x) as x from ({inner}) "
            f"group by window(window_time(w), '{span}'){key}"
        )
        return sql, ("append",)

    # ---- parts -------------------------------------------------------------------------------------------------------

    def source(self, name: str) -> str:
        return self.chance.choice([name, name, f"(select * from {name} where {self.chance.choice(CONDITIONS)})"])

    def where(self) -> str:
        count = self.chance.choice([0, 0, 1, 2])
        chosen = self.chance.sample(CONDITIONS, count)
        return f"where {' and '.join(f'({one})' for one in chosen)}" if chosen else ""

    def having(self) -> str:
        return self.chance.choice(["", "", "having count(*) > 1", "having sum(v) > 100"])

    def key(self) -> tuple[str, str]:
        key = self.chance.choice(["", *KEYS[:3], KEYS[3]])
        return (f", {key}", f", {key}") if key and "%" not in key else (f", {key}" if key else "", "")

    def window(self, column: str) -> tuple[str, str]:
        kind = self.chance.choice(["tumble", "tumble", "slide", "session"])
        if kind == "session":
            return f"session_window({column}, '{self.chance.choice(['3 seconds', '8 seconds'])}')", "session_window"
        if kind == "slide":
            return f"window({column}, '1 minute', '{self.chance.choice(['20 seconds', '30 seconds'])}')", "window"
        return f"window({column}, '{self.chance.choice(SPANS)}')", "window"

    def aggregates(self) -> str:
        chosen = self.chance.sample(AGGREGATES[:-2], self.chance.choice([1, 2, 3]))
        if self.chance.random() < 0.05:
            chosen.append(self.chance.choice(AGGREGATES[-2:]))
        return ", ".join(f"{one} as c{place}" for place, one in enumerate(chosen))


def generated(seed: int) -> GeneratedQuery:
    """Return the query of a seed."""
    return Grammar(seed).query()
