# SPDX-License-Identifier: Apache-2.0
"""The style sheet and the program of the web page, and the headers that let a browser run these two and nothing else.

Both stand in the page itself, so there is nothing to load. The policy names them by their hash: a name of a pod that
got past the escaping would still run nothing, and the page sends nothing anywhere but to where it is from.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType

__all__ = ["HEADERS", "SCRIPT", "STYLE"]

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#f6f7f9;--card:#fff;--line:#d0d5db;
--dim:#56606b;--link:#0b57d0;--warn:#9a3412}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--paper:#101316;--card:#191d22;
--line:#343b43;--dim:#9aa4af;--link:#8ab4f8;--warn:#fdba74}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:14px/1.45 system-ui,sans-serif}
header,main{max-width:1180px;margin:0 auto;padding:12px 20px}
h1{font-size:20px;margin:6px 0}h2{font-size:16px;margin:26px 0 8px}h3{font-size:14px;margin:0;overflow-wrap:anywhere}
p{margin:4px 0}
a{color:var(--link)}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:6px}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
main:focus{outline:none}
nav a{margin-right:14px}
form{display:flex;gap:8px;align-items:center;flex-wrap:wrap;margin:8px 0}
input[type=search]{font:inherit;padding:5px 8px;min-width:min(260px,100%);background:var(--card);color:inherit;
border:1px solid var(--dim);border-radius:5px}
::placeholder{color:var(--dim);opacity:1}
button{font:inherit;padding:5px 12px;background:var(--card);color:inherit;
border:1px solid var(--dim);border-radius:5px;cursor:pointer}
.lead{font-size:16px;margin:4px 0 12px}
.sums,.legend,.gpus{display:flex;gap:12px;flex-wrap:wrap;margin:0;padding:0;list-style:none}
.sums li,article{background:var(--card);border:1px solid var(--line);border-radius:7px;padding:8px 14px}
.sums b{display:block;font-size:18px}
.legend{gap:4px 16px;margin:6px 0}
.dim{color:var(--dim)}.warn{color:var(--warn)}
.stale #at{color:var(--warn)}
article{margin:10px 0}
.gpus{gap:8px;margin:6px 0;align-items:flex-end}
.near{border:1px solid var(--line);border-radius:5px;padding:2px 7px 0}
.near .gpus{margin:2px 0}
.gpus svg{display:block}
.bar svg{display:block;margin-top:10px;width:100%;max-width:none}
dl{margin:6px 0}
dl div{display:flex;gap:10px;margin:3px 0}
dt{flex:0 0 92px;font-weight:600}dd{margin:0}
table{border-collapse:collapse;width:100%;background:var(--card);border:1px solid var(--line)}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--line);vertical-align:top}
tbody th{font-weight:inherit}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
summary{cursor:pointer}
details ul{margin:4px 0 6px;padding-left:20px}
.wide{overflow-x:auto;position:relative}
.key{display:inline-block;margin-right:5px;vertical-align:-1px}
[hidden]{display:none!important}
@media(max-width:600px){header,main{padding:8px 10px}article,.sums li{padding:6px 8px}th,td{padding:4px 6px}
tbody th,td{overflow-wrap:anywhere}dl div{display:block}.near{padding:2px 4px 0}.gpus{gap:6px}}
""".strip()

SCRIPT = """
(() => {
  const every = 10000;
  const [field, live, said, at] = ["q", "live", "said", "at"].map((id) => document.getElementById(id));
  document.querySelectorAll(".js").forEach((one) => { one.hidden = false; });
  const served = new Map();
  const remember = (part) => served.set(part.id, part.outerHTML);
  document.querySelectorAll("main > section").forEach(remember);
  let since = Date.now();
  const tell = () => {
    const seconds = Math.round((Date.now() - since) / 1000);
    at.textContent = "updated " + (seconds < 120 ? seconds + " s" : Math.floor(seconds / 60) + " min") + " ago";
  };
  const filter = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    document.querySelectorAll("[data-text]").forEach((one) => {
      one.hidden = !words.every((word) => one.dataset.text.includes(word));
      shown += one.hidden ? 0 : 1;
    });
    said.textContent = words.length ? shown + " shown" : "";
  };
  const focused = () => {
    const active = document.activeElement;
    const holder = active && active.closest("[id]");
    return () => {
      const again = holder && holder.id && document.getElementById(holder.id);
      if (!again || document.activeElement === active) return;
      const inner = active.id ? again : again.querySelector(active.tagName) || again;
      inner.focus({preventScroll: true});
    };
  };
  const replace = (part) => {
    const text = part.outerHTML;
    const old = document.getElementById(part.id);
    if (!old || served.get(part.id) === text) return;
    const open = new Set([...old.querySelectorAll("details[open]")].map((one) => one.id));
    part.querySelectorAll("details").forEach((one) => { one.open = open.has(one.id); });
    served.set(part.id, text);
    old.replaceWith(document.adoptNode(part));
  };
  const refresh = async () => {
    if (!live.checked || document.hidden) return;
    try {
      const answer = await fetch(location.href, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const back = focused();
      const parts = [...fresh.querySelectorAll("main > section")];
      document.querySelectorAll("main > .warn").forEach((one) => one.remove());
      fresh.querySelectorAll("main > .warn").forEach((one) => {
        document.querySelector("main").prepend(document.adoptNode(one));
      });
      parts.forEach(replace);
      back();
      since = Date.now();
      tell();
      filter();
      document.body.classList.remove("stale");
    } catch (error) {
      said.textContent = "not refreshed: the page's server does not answer";
      document.body.classList.add("stale");
    }
  };
  field.addEventListener("input", filter);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) { event.preventDefault(); field.focus(); }
    if (event.key === "Escape" && document.activeElement === field) { field.value = ""; filter(); }
  });
  setInterval(refresh, every);
  setInterval(tell, 1000);
  tell();
  filter();
})();
""".strip()


def _hash(text: str) -> str:
    return "'sha256-" + b64encode(sha256(text.encode()).digest()).decode() + "'"


HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": (
            f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self'; "
            "img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
"""What the page must be sent with."""
