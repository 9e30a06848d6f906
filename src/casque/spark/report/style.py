"""The look of the page: one style sheet, light and dark, nothing from elsewhere."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--page:#f4f5f7;--card:#fff;--ink:#1b2330;--soft:#586174;--rule:#dfe3ea;--grid:#e8ebf0;
--one:#1f6fb2;--two:#c8501e;--three:#6b4ea0;--four:#1d8a6b;--bad:#b3261e;--good:#1d7a4f;--link:#1559a0;
--h0:#eef0f4;--h1:#dcebf7;--h2:#c0daef;--h3:#9cc5e4;--h4:#73abd6;--h5:#4a90c6;--h6:#2b74b0;--h7:#175a94;--h8:#0b4173}
@media screen and (prefers-color-scheme:dark){:root{
--page:#12161c;--card:#1a2029;--ink:#e7ebf2;--soft:#a3adbd;--rule:#2e3744;
--grid:#29313d;--one:#5fb0ee;--two:#f08a55;--three:#b79af0;--four:#4fc9a4;--bad:#ff8b80;--good:#6fd3a3;--link:#8cc4ff;
--h0:#222a35;--h1:#1b3349;--h2:#1c4463;--h3:#1f567f;--h4:#266a9b;--h5:#3481b8;--h6:#4f9bd0;--h7:#79b9e4;--h8:#abd6f3}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 16px}
header{padding-top:28px}
h1{font-size:26px;line-height:1.2;margin:0 0 6px}
h2{font-size:19px;margin:0 0 4px}
h3{font-size:15px;margin:20px 0 4px}
p{margin:4px 0 10px}
a{color:var(--link)}
.soft,figcaption,footer{color:var(--soft)}
.facts{margin:0;display:flex;flex-wrap:wrap;gap:2px 24px}
.facts div{display:flex;gap:6px;min-width:0}
.facts dt{color:var(--soft);white-space:nowrap}
.facts dd{margin:0;overflow-wrap:anywhere}
nav{margin:14px 0 18px;display:flex;flex-wrap:wrap;gap:6px 16px}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:18px 20px;margin:0 0 18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(156px,1fr));gap:10px;margin:12px 0 0;padding:0}
.tile{border:1px solid var(--rule);border-radius:8px;padding:10px 12px}
.tile dt{color:var(--soft);font-size:13px}
.tile dd{margin:0;font-size:23px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.about{display:block;font-size:12px;font-weight:400;color:var(--soft);line-height:1.35}
figure{margin:14px 0 0}
.wide{overflow-x:auto}
svg.chart{display:block;width:100%;min-width:640px;height:auto}
svg.chart.half{min-width:340px}
svg text{fill:var(--ink);font-size:12px}
svg text.unit{fill:var(--soft)}
svg text.centred,svg text.cell{text-anchor:middle}
svg text.cell{font-size:9px}
svg text.cell.strong{fill:var(--card)}
.grid{stroke:var(--grid)}
.axis{stroke:var(--soft)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.line.one{stroke:var(--one)}.line.two{stroke:var(--two)}.line.three{stroke:var(--three)}.line.four{stroke:var(--four)}
.line.three{stroke-dasharray:5 4}
.line.bad{stroke:var(--bad)}.area.bad,.dot.bad{fill:var(--bad)}
.area{opacity:.18}
.partial{fill:var(--soft);fill-opacity:.14}
.part{stroke:var(--two);stroke-width:1.5;stroke-dasharray:3 2}
.area.one,.dot.one,.bar.one,.spot.one{fill:var(--one)}
.area.two,.dot.two{fill:var(--two)}.area.three,.dot.three{fill:var(--three)}.area.four,.dot.four{fill:var(--four)}
.spot{fill-opacity:.55;stroke:var(--one)}
.ghost{fill:transparent}.ghost:hover{fill:var(--soft);fill-opacity:.4}
.bar:hover,.spot:hover,.heat:hover{opacity:.75}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}
.h5{fill:var(--h5)}.h6{fill:var(--h6)}.h7{fill:var(--h7)}.h8{fill:var(--h8)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 0;padding:0;list-style:none;font-size:13px}
.legend i{display:inline-block;width:18px;border-top:3px solid;vertical-align:middle;margin-right:6px}
.legend b{font-weight:400;color:var(--soft);margin-left:6px}
.legend .bad{border-color:var(--bad)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:0 16px}
.legend .one{border-color:var(--one)}.legend .two{border-color:var(--two)}
.legend .three{border-color:var(--three);border-top-style:dashed}.legend .four{border-color:var(--four)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums;margin-top:8px}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}
tbody th{color:var(--ink);font-weight:500;white-space:normal;overflow-wrap:break-word;min-width:120px;max-width:240px}
td.n,th.n{text-align:right;white-space:nowrap;padding-right:10px}
td.text{overflow-wrap:break-word;min-width:110px;max-width:190px}
td.sample{min-width:200px;max-width:400px}
td .meter{display:block;height:4px;border-radius:2px;background:var(--h1);margin-top:3px;min-width:60px}
td .meter i{display:block;height:4px;border-radius:2px;background:var(--one)}
td.bad .meter i{background:var(--two)}
svg.strip{display:block;width:320px;height:16px;border-radius:3px}
.more{color:var(--bad)}.less{color:var(--good)}
details{margin-top:8px}
summary{cursor:pointer;color:var(--link);font-size:13px}
.none{color:var(--soft);font-style:italic}
footer{padding-bottom:40px;font-size:13px}
@media (max-width:560px){section{padding:14px 12px}.tiles{grid-template-columns:repeat(2,1fr)}}
@media print{:root{color-scheme:light}nav,details{display:none}body{background:#fff;font-size:12px}
section{border:0;padding:0;margin:0 0 14px}main,header,footer{padding:0;max-width:none}header{margin-bottom:10px}
.wide{overflow:visible}svg.chart,svg.chart.half{min-width:0}svg.strip{width:150px}
table{font-size:10px}td.n,th.n{padding-right:4px}.about,.legend{font-size:9px}td .meter{min-width:30px}
tbody th,td.text,td.sample{min-width:0;overflow-wrap:anywhere}
figure,tr,.tile,.pair{break-inside:avoid}h2,h3,h2+p,h3+p{break-after:avoid}.meter,.meter i,svg{print-color-adjust:exact}
.tiles{grid-template-columns:repeat(6,1fr);gap:6px}.tile{padding:6px}.tile dd{font-size:16px}}
"""
