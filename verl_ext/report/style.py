"""The style sheet of a report: no outside file, light and dark, phone, desktop and paper."""

from __future__ import annotations

from verl_ext.report.theme import css_variables

STYLE = (
    ":root{color-scheme:light dark;"
    "--font:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
    "--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;"
    "--page:#f4f6f8;--soft:#eef1f4;--tint:#fdecea;"
    "--shadow:0 1px 2px rgba(20,28,36,.06),0 1px 8px rgba(20,28,36,.04);" + css_variables(dark=False) + "}"
    "@media (prefers-color-scheme: dark){:root{--page:#0d1014;--soft:#20262e;--tint:#3a1f1f;--shadow:none;"
    + css_variables(dark=True)
    + "}}"
    """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 var(--font)}
main{max-width:1240px;margin:0 auto;padding:32px 24px 64px}
h1,h2,h3,p,figure,ul{margin:0}
h1{font-size:clamp(26px,4.2vw,38px);line-height:1.15;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{font-size:20px;letter-spacing:-.01em;margin:40px 0 14px}
h3{font-size:15px;font-weight:650}
a{color:var(--blue)}
.eyebrow{color:var(--muted);font-size:13px;font-weight:600;letter-spacing:.06em;text-transform:uppercase}
.verdict{font-size:clamp(17px,2.2vw,21px);margin-top:10px;overflow-wrap:anywhere}
.meta{color:var(--muted);font-size:14px;margin-top:10px;
display:flex;flex-wrap:wrap;gap:4px 18px;align-items:center}
.meta .flag{color:var(--alert);font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;
margin:26px 0 0;padding:0;list-style:none}
.box,.plot,.cards li{background:var(--card);border:1px solid var(--grid);
border-radius:12px;box-shadow:var(--shadow)}
.cards li{padding:14px 16px 13px}
.cards .label{color:var(--muted);font-size:13px;line-height:1.3}
.cards .value{font-size:27px;font-weight:650;letter-spacing:-.02em;line-height:1.3;
font-variant-numeric:tabular-nums}
.cards .context{color:var(--muted);font-size:13px;line-height:1.35}
.cards .alert{border-color:var(--alert)}
.cards .alert .value{color:var(--alert)}
.cards .missing .value{color:var(--muted);font-size:19px;line-height:1.85;font-weight:500}
.plot{padding:14px 16px 12px;min-width:0}
.plot svg{display:block;width:100%;height:auto;margin:8px 0 6px}
.plot svg *{stroke-linejoin:round;stroke-linecap:butt}
.plot .caption{color:var(--muted);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
.lead{margin-top:14px}
.plots{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:14px;margin-top:14px}
.plots .span-2{grid-column:span 2}
.plots .span-3{grid-column:1/-1}
.only-narrow{display:none}
.box{padding:16px}
.box+.box{margin-top:14px}
.scroll{overflow-x:auto;padding:4px 16px}
.scroll:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:14px}
.of-2{width:auto;min-width:min(420px,100%)}
.of-5,.of-4{min-width:720px}
.of-3{min-width:760px}
.of-5 td,.of-5 th{white-space:nowrap}
caption{text-align:left;color:var(--muted);font-size:13px;padding:10px 0 6px}
th,td{text-align:left;vertical-align:top;padding:8px 14px 8px 0;border-top:1px solid var(--grid)}
thead th{border-top:0;color:var(--muted);font-weight:600;font-size:13px;white-space:nowrap}
tbody th{font-weight:600}
td.number{font-family:var(--mono);font-size:13px;white-space:nowrap}
th.group{padding-top:18px;color:var(--muted);font-size:13px}
th.name{font-family:var(--mono);font-size:13px;font-weight:500;overflow-wrap:anywhere}
code,pre{font-family:var(--mono);font-size:13px}
pre{margin:0;padding:14px 16px;overflow-x:auto;background:var(--soft);border-radius:8px;line-height:1.55}
pre code{user-select:all;-webkit-user-select:all}
.hint{color:var(--muted);font-size:13px;margin-top:8px}
.features{margin:0;padding:0;list-style:none}
.features>li{margin:4px 0;font-size:13px}
.features details summary{font-weight:400;color:var(--muted)}
.features ul{padding-left:20px;overflow-wrap:anywhere}
.chip{display:inline-block;background:var(--soft);color:var(--ink);border-radius:999px;padding:2px 10px;
overflow-wrap:anywhere}
.chip b{font-weight:600}
.chip.off{color:var(--muted)}
.box ul.notes{padding-left:20px}
.notes li{margin:4px 0;overflow-wrap:anywhere}
.notice{border-left:4px solid var(--alert);margin-top:14px}
.box h3+ul,.box h3+p{margin-top:6px}
.box ul+h3{margin-top:16px}
details summary{cursor:pointer;font-weight:600;padding:2px 0}
footer{color:var(--muted);font-size:13px;margin-top:40px}
@media (max-width:1000px){
.plots{grid-template-columns:repeat(2,minmax(0,1fr))}
.plots .span-2{grid-column:1/-1}
}
@media (max-width:720px){
main{padding:20px 14px 48px}
.plots{grid-template-columns:minmax(0,1fr)}
.plots .span-2,.plots .span-3{grid-column:auto}
.cards{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}
.cards .value{font-size:23px}
.plot{padding:12px 12px 10px}
.only-wide{display:none}
.only-narrow{display:block}
h2{margin-top:32px}
}
@media print{
:root{color-scheme:light;--page:#fff;--soft:#f4f6f8;--tint:#fdecea;--shadow:none;"""
    + css_variables(dark=False)
    + """}
body{font-size:12px}
main{max-width:none;padding:0}
.plot,.cards li,.box,tr{break-inside:avoid}
h2{break-after:avoid}
.scroll{overflow:visible}
.of-5,.of-4,.of-3{min-width:0}
table{font-size:10px}
th,td{padding-right:8px}
.of-5 td,.of-5 th{white-space:normal}
code,th.name,td.number{font-size:10px}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
}
"""
)
