"""`python -m bench.pages` writes the pages about benchmarks from the result files; --check only compares."""

import argparse
import sys
from pathlib import Path

from bench import result_files
from bench.pages import benchmarks_page, scale_page

ROOT = Path(__file__).parents[2]
BEGIN = "<!-- figures written by make bench-docs -->"
END = "<!-- end of figures -->"


def files() -> dict[Path, str]:
    """Return every file that the results give, with its content."""
    everything = result_files.read()
    compared = [measured for measured in everything if measured.benchmark != "scale"]
    docs = ROOT / "docs"
    text, pictures = benchmarks_page.page(compared)
    pages = {docs / "benchmarks.md": text}
    pages |= {docs / benchmarks_page.IMAGES / name: drawn for name, drawn in pictures.items()}
    for measured in everything:
        if measured.benchmark == "scale":
            text, pictures = scale_page.page(measured)
            pages[docs / "scale.md"] = text
            pages |= {docs / scale_page.IMAGES / name: drawn for name, drawn in pictures.items()}
    readme = (ROOT / "README.md").read_text()
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(benchmarks_page.headline(compared))
    pages[ROOT / "README.md"] = f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description="Pages about benchmarks.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is not what the results give")
    check = parser.parse_args().check
    different = [path for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path in different:
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path])
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
