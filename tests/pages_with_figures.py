"""Pages with figures, and the figures on them that no kept benchmark result holds."""

from __future__ import annotations

from tests.markdown_pages import README, ROOT

INDEX = ROOT / "docs" / "index.md"
FAQ = ROOT / "docs" / "explanation" / "faq.md"
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"
COMPARISON = ROOT / "docs" / "explanation" / "comparison.md"
SCALE = ROOT / "docs" / "explanation" / "scale.md"

# Numbers with decimals that no kept result holds, and why.
LEFT_OUT = (
    # `bench/key_search.py` keeps no result: it compares ways, on a machine with other work.
    (SCALE, "| 0.4 s, 171 MB | 0.6 s, 178 MB | 1.0 s, 151 MB | 0.5 s, 202 MB |"),
    (SCALE, "| 0.9 s, 272 MB | 1.4 s, 308 MB | 1.8 s, 186 MB | 0.7 s, 213 MB |"),
    (SCALE, "| 1.0 s, 250 MB | 1.4 s, 245 MB | 2.2 s, 242 MB | 1.7 s, 250 MB |"),
    (SCALE, "| 3.7 s, 520 MB | 4.7 s, 290 MB | 4.1 s, 437 MB | 2.9 s, 266 MB |"),
    # A run of the benchmark `records` whose result is not kept, counts of single tasks, and prices.
    (SCALE, "with 12 records each, 0.3 and 3.3 million objects"),
    (SCALE, "1.3 kB R with 100 keys each"),
    (SCALE, "all steps together **1.04**; the least is 0.87 (seal), the most 1.24 (status)"),
    (SCALE, "330,000 objects took 3.9 s instead of 33 s"),
    (SCALE, "a record that counts takes 1.7 kB on the driver"),
    (SCALE, "40,000 tasks, 2.4 million checkpoints"),
    (SCALE, "7.2 million at most, 200 a second"),
    (SCALE, "2.4 million for keys at cuts"),
    (SCALE, "7.3 million; the sweep deletes them"),
    (SCALE, "40,000 records of 1.7 kB"),
    (SCALE, "at 0.005 USD for a thousand writes or listings and 0.0004 for a thousand reads"),
    (SCALE, "11 to read, less than 0.1 to list"),
    # The benchmark `per-row` has no kept result.
    (README, "`per-row`, 16,000 calls of 0.05 to 2 s"),
    (README, "| 1.05 of that time, checkpoints on;"),
    (README, "without checkpoints, 1.04 |"),
    # The logs and profiles of single runs.
    (PERFORMANCE, "3.5 s for the 3 % of the rows"),
    (PERFORMANCE, "5.1 s to read 394 MB of chunks"),
    (PERFORMANCE, "(one such task alone takes 2.2 s); 0.2 s for everything else"),
    (PERFORMANCE, "waits 1.8 s for its first row group, 3.6 s for the last parts"),
    (PERFORMANCE, "sequential requests, 0.1 s each"),
    (PERFORMANCE, "use 32.0 s of it with IO and 31.4 without, S3 server and proxy 3.7"),
    (PERFORMANCE, "0.03 s each, and 0.03 s for everything else"),
    # Earlier runs, before a change or with another input.
    (PERFORMANCE, "it was 1.55,"),
    (PERFORMANCE, "(15.2, 13.1, 15.0 against 19.5 s) 1.16"),
    (PERFORMANCE, "it was 1.32 before two changes"),
    (PERFORMANCE, "from 25.1 to 10.7 s"),
    (PERFORMANCE, "a ratio of 1.43: there was"),
    # A goal, a size of the input, versions.
    (PERFORMANCE, "where 1.15 was the goal"),
    (PERFORMANCE, "Twenty copies are 12.5 GB"),
    (PERFORMANCE, "quicker on Python 3.12 and newer"),
    (PERFORMANCE, "Python 3.10 and 3.11 then read"),
    (INDEX, "0.1, in development"),
    (FAQ, "(Spark 4.1 silently fills"),
    # Said by others, and versions.
    (COMPARISON, "at least 1 GiB, and 1.5 times the array"),
    (COMPARISON, "With `merge`, 1.31 upserts"),
    (COMPARISON, "its text of 1.26"),
    (COMPARISON, "documentation of 26.07"),
    (COMPARISON, "versions/v26.07/pages"),
    (COMPARISON, "Since Spark 4.1,"),
    (COMPARISON, "Holdfast is 0.1."),
    # Goals, formulas, and profiles of single runs.
    (SCALE, "10.4 (2 D + L)"),
    (SCALE, "3.4 million integers with 2 GB"),
    (SCALE, "The goal was 1.0 with a listing"),
    (SCALE, "What is left without the listing, 1.5 s"),
    (SCALE, "Java's whole append takes 0.9 s"),
    (SCALE, "It was 1.57 with one manifest of all files, 1.22 to 1.30 with four and 1.20 with ten"),
    # Small jobs by hand, and the range of the rounds.
    (PERFORMANCE, "took between 13.7 and 16.3 s"),
    (PERFORMANCE, "took 1.22 s with events and 1.18 s without, medians of ten"),
    # One run of the benchmark `upsert-slope`, whose result is not kept.
    (SCALE, "| 12 million | 2.48 | 14.5 MB | 277.5 MB | 203.5 MB |"),
    (SCALE, "| 48 million | 2.73 | 14.5 MB | 273.8 MB | 204.0 MB |"),
    (SCALE, "| 192 million | 3.23 | 14.7 MB | 269.6 MB | 206.7 MB |"),
    (SCALE, "A table of 16 times the size costs 1.30 of the time"),
    (SCALE, "| 2.0 |"),
    (SCALE, "| 5.8 |"),
    (SCALE, "with 0.3 MB"),
    (SCALE, "what 1.25, the goal, is missed by; before pages were copied it was 1.954"),
    (SCALE, "The goal was 0.35: a quarter of 7.3 s is 1.8 s"),
)
