/* The style sheet of a report. Colours are variables, so that the dark scheme changes them in one place. */
#include "src/report/html.h"

/* Series colours are those of Okabe and Ito (2008), which most eyes can distinguish, darker on white if they are too
 * light. Kinds of time alternate between dark and light, so that neighbours also differ in grey. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--ink:#1b1f24;--soft:#5a636e;--line:#d5dae0;--grid:#e8ebef;--warn:#fff4d6;"
    "--c0:#0060a8;--c1:#c94f00;--c2:#007a58;--c3:#a83f7f;--c4:#8a6d00;--c5:#2a94c9;--c6:#1b1f24;--c7:#7b5cc4;"
    "--t0:#0b4f8a;--t1:#e88a1a;--t2:#00704f;--t3:#d98fd0;--t4:#5a636e;--t5:#4c8fc9;--t6:#a9cbe8;--t7:#f5c98f;--t8:#7a4fb5}\n"
    "@media screen and (prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e6e9ed;--soft:#9aa4af;--line:#3a424b;"
    "--grid:#262c33;--warn:#3a3114;--c0:#5fb0f0;--c1:#ff9a4d;--c2:#35c79b;--c3:#ea8fc4;--c4:#e3c63c;--c5:#9ad9f7;"
    "--c6:#e6e9ed;--c7:#b9a4f2;--t0:#3f8fd6;--t1:#f7c98a;--t2:#17a673;--t3:#f0bde8;--t4:#6f7a86;--t5:#2b6396;--t6:#1d4468;--t7:#8a5c1c;--t8:#b79be6}}\n"
    "body{margin:0 auto;padding:1.5rem;max-width:80rem;background:var(--bg);color:var(--ink);"
    "font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.7rem;margin:0 0 .2rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.4rem 0 .6rem;border-bottom:1px solid var(--line)}\n"
    "p{margin:.4rem 0;max-width:60rem}\n"
    ".notes{background:var(--warn);padding:.5rem .9rem;border-radius:.4rem;margin:1rem 0}.notes ul{margin:0;padding-left:1.1rem}\n"
    "dl.figures{display:grid;grid-template-columns:repeat(4,1fr);gap:1.4rem;margin:1.4rem 0 1.8rem}dl.figures div{border-top:3px solid var(--c0);padding-top:.5rem}\n"
    "dt{font-size:.85rem;color:var(--soft)}dd{margin:0}dd b{display:block;font-size:2.3rem;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "dd small{font-size:.85rem;color:var(--soft);overflow-wrap:anywhere}\n"
    ".tip{display:inline-block;width:1.25em;height:1.25em;line-height:1.25em;margin-left:.45em;border-radius:50%;text-align:center;"
    "font-size:.68rem;font-weight:400;vertical-align:.15em;background:var(--grid);color:var(--soft);cursor:help}.tip::before{content:'?'}"
    ".tip:focus{outline:none;width:auto;height:auto;max-width:60rem;border-radius:.4rem;padding:.1rem .5rem;text-align:left;font-size:.8rem}"
    ".tip:focus::before{content:attr(title)}\n"
    ".pair,.trio{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1.2rem;margin:1.2rem 0;align-items:start}\n"
    "figure{margin:0;break-inside:avoid}figure>svg{display:block;width:100%;height:auto}\n"
    "figcaption{font-size:.85rem;color:var(--soft);margin:.2rem 0 .3rem}figcaption strong{color:var(--ink);font-size:.95rem}\n"
    "svg text{font-size:12px;fill:var(--ink)}svg .tick{fill:var(--soft)}\n"
    "svg .grid{stroke:var(--grid)}svg .frame{stroke:var(--soft);fill:none}svg .guide{stroke:var(--soft);stroke-dasharray:2 4}svg .start{stroke:var(--soft)}\n"
    "svg .guess{stroke:var(--soft);stroke-width:1}svg .l{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .w1{stroke-width:4;opacity:.6}svg .w2{stroke-width:7;opacity:.5}svg .m{stroke-width:1.8;fill:var(--bg)}svg .band{opacity:.2}\n"
    ".k0{stroke:var(--c0)}.k1{stroke:var(--c1)}.k2{stroke:var(--c2)}.k3{stroke:var(--c3)}.k4{stroke:var(--c4)}"
    ".k5{stroke:var(--c5)}.k6{stroke:var(--c6)}.k7{stroke:var(--c7)}\n"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\n"
    ".t0{fill:var(--t0)}.t1{fill:var(--t1)}.t2{fill:var(--t2)}.t3{fill:var(--t3)}.t4{fill:var(--t4)}.t5{fill:var(--t5)}.t6{fill:var(--t6)}.t7{fill:var(--t7)}.t8{fill:var(--t8)}\n"
    "ul.legend{list-style:none;margin:.2rem 0 .9rem;padding:0;display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;font-size:.85rem}\n"
    "ul.legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere}ul.legend svg{flex:none}\n"
    "table{border-collapse:collapse;font-size:.85rem;margin:.6rem 0}\n"
    "th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:middle}td.name,td.v{overflow-wrap:anywhere}\n"
    "th{font-weight:600;vertical-align:bottom}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}th.key{white-space:nowrap}\n"
    "td.name{min-width:8em}td.bar{min-width:12em;width:38%}td.bar svg{display:block;width:100%}table:has(td.bar){width:100%}\n"
    "tr{break-inside:avoid}thead{display:table-header-group}\n"
    ".swatch{vertical-align:-1px;margin-right:.3rem}details{margin:.8rem 0}summary{cursor:pointer}\n"
    "ul.said,ul.flags{font-size:.85rem;margin:.2rem 0 .9rem;padding-left:1.1rem}ul.runs{list-style:none;padding:0;margin:.2rem 0 .6rem;font-size:.85rem;color:var(--soft)}"
    "ul li{overflow-wrap:anywhere}\n"
    "pre{font-size:.8rem;columns:22rem;white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0}pre.sample{columns:auto;font-size:.9rem;border-left:3px solid var(--line);padding-left:.9rem}\n"
    "@media screen and (min-width:1000px){.trio{grid-template-columns:repeat(3,1fr)}.trio svg text{font-size:18px}.trio svg .fine,.trio svg .side{display:none}"
    "figure.wide+figure.half{display:none}}\n"
    "@media print,screen and (max-width:999px){figure.wide{display:none}}\n"
    "@media screen and (max-width:999px){table,thead,tbody{display:block}thead th{display:none}"
    "tr{display:flex;flex-wrap:wrap;border-bottom:1px solid var(--line);padding:.3rem 0}"
    "thead th.key{display:block;border:0}td{border:0;padding:.1rem .9rem .1rem 0}"
    "td.name,td.bar{flex:1 0 100%;min-width:0;padding-right:0}td.name{font-weight:600}"
    "td[data-of]::before{content:attr(data-of) ' ';color:var(--soft)}}\n"
    "@media screen and (max-width:600px){body{padding:.8rem}svg text{font-size:19px}svg .fine,svg .side{display:none}"
    "dl.figures{grid-template-columns:1fr 1fr;gap:1rem}dd b{font-size:1.7rem}}\n"
    "@media print{@page{margin:14mm}body{padding:0;max-width:none;font-size:10pt}h2,h2+p{break-after:avoid}.tip{display:none}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}"
    ".pair,.trio{grid-template-columns:1fr 1fr}dd b{font-size:17pt}table{font-size:8pt}th,td{padding:.15rem .35rem}}\n";

/* The style is inside the page, so that it needs no second file. */
void sh_html_style(FILE *out)
{
    fprintf(out, "<style>\n%s</style>\n", style);
}
