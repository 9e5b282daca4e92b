"""Styles of the page, light and dark."""

_COLOURS = """
  --page: #ffffff; --card: #f5f6f8; --ink: #1d1f24; --soft: #5c606b; --line: #d9dbe1; --accent: #2f5fb3; --warn: #fff4d6;
"""
_DARK = """
  --page: #15171c; --card: #20232b; --ink: #e8e8ea; --soft: #a9abb3; --line: #3b3e47; --accent: #8db4f5; --warn: #423614;
"""

PAGE = f"""
:root {{ color-scheme: light dark; {_COLOURS} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }}
main {{ max-width: 1680px; margin: 0 auto; padding: 24px 32px 48px; }}
h1 {{ font-size: 24px; margin: 0 0 4px; font-weight: 650; overflow-wrap: anywhere; }}
h2 {{ font-size: 17px; margin: 36px 0 10px; font-weight: 650; }}
.sub {{ color: var(--soft); margin: 0 0 18px; }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 10px; margin: 0 0 8px; }}
.fact {{ background: var(--card); border-radius: 8px; padding: 10px 14px; }}
.fact dt {{ color: var(--soft); font-size: 12px; }}
.fact dd {{ margin: 2px 0 0; font-weight: 600; overflow-wrap: anywhere; }}
.warning {{ background: var(--warn); border-radius: 8px; padding: 10px 14px; margin: 12px 0; }}
.controls {{ display: flex; flex-wrap: wrap; gap: 8px 28px; align-items: center; margin: 4px 0 10px; }}
.controls > div {{ display: flex; flex-wrap: wrap; max-width: 100%; gap: 8px; align-items: center; color: var(--soft); }}
.legend {{ display: flex; flex-wrap: wrap; gap: 4px 20px; color: var(--soft); font-size: 13px; margin: 0 0 8px; }}
.legend i {{ display: inline-block; width: 22px; height: 11px; margin-right: 6px; border-radius: 2px; vertical-align: -1px; }}
.legend i.strip {{ height: 5px; vertical-align: 2px; }}
.legend i.room {{ width: 2px; height: 14px; vertical-align: -2px; }}
.legend i.moved {{ border-top: 3px solid; border-radius: 0; }}
.charts {{ display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 20px; align-items: start; }}
.charts.single {{ grid-template-columns: minmax(0, 1fr); }}
@media (max-width: 900px) {{ .charts {{ grid-template-columns: minmax(0, 1fr); }} main {{ padding: 16px; }} }}
.notes {{ color: var(--soft); font-size: 13px; max-width: 110ch; }}
.notes li {{ margin: 3px 0; }}
"""

CONTROL = """
:host { color: var(--ink); max-width: 100%; }
.bk-btn-group { flex-wrap: wrap; }
.bk-input { background: var(--page); color: var(--ink); border-color: var(--line); }
.bk-input::placeholder { color: var(--soft); }
.bk-btn { background: var(--card); color: var(--ink); border-color: var(--line); }
.bk-btn:hover { background: var(--line); color: var(--ink); }
.bk-btn.bk-active { background: var(--accent); color: var(--page); border-color: var(--accent); box-shadow: none; }
"""

LIST = """
:host { border: 1px solid var(--line); border-radius: 6px; overflow: hidden; background: var(--page); }
.slick-header, .slick-header-columns, .slick-header-column, .bk-slick-header {
  background: var(--card) !important; color: var(--ink) !important; border-color: var(--line) !important;
}
.slick-header-column { font-weight: 600; height: 30px; }
.slick-row, .slick-row.odd, .slick-row.even, .slick-viewport, .grid-canvas {
  background: var(--page) !important; color: var(--ink) !important;
}
.slick-row.odd { background: var(--card) !important; }
.slick-row:hover { background: var(--line) !important; }
.slick-cell { padding: 0 8px; border-color: transparent !important; color: var(--ink) !important; background: transparent; }
.slick-row .slick-cell.selected, .slick-row.selected .slick-cell { background: var(--line) !important; }
.slick-sort-indicator { color: var(--accent); }
"""
