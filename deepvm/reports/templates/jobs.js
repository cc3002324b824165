"use strict";
// What the pointer is on, the filter of events and, where the page is served, newer parts of it. Without it the page has
// all the same figures.
const runPage = {
  QUIET_MS: 15000, // the server says something at least every 5 s: without it for so long, what is shown is stale
  RETRY_MS: 2000,
  // "12.3 s", "4:05", "1:04:05", "2 d 1:04:05", as the tables have it.
  elapsed(seconds) {
    if (seconds < 60) { return `${Math.max(seconds, 0).toFixed(1)} s`; }
    const two = (n) => String(n).padStart(2, "0"), all = Math.floor(seconds);
    const [days, hours, minutes, rest] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60, all % 60];
    if (!days && !hours) { return `${minutes}:${two(rest)}`; }
    return `${days ? `${days} d ` : ""}${hours}:${two(minutes)}:${two(rest)}`;
  },
  // The value of a line [[x, y], ...] at x, between its points; null before and behind them.
  valueAt(points, x) {
    if (!points.length || x < points[0][0] || x > points[points.length - 1][0]) { return null; }
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= x) { low = middle; } else { high = middle; }
    }
    const [x0, y0] = points[low], [x1, y1] = points[high];
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y1;
  },
  // Whether a row has all words of a search, and is of the wanted group (empty: of any).
  matches(text, of, query, group) {
    const lower = text.toLowerCase();
    return (!group || of === group) && query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
  },
  start(page) {
    const one = (id) => page.getElementById(id);
    runPage.tips(page, one("tip"));
    if (one("filter")) { runPage.filter(one); }
    if (one("live")) { runPage.live(page, one); }
  },
  tips(page, tip) {
    let cursor = null;
    const hide = () => {
      tip.hidden = true;
      if (cursor) { cursor.setAttribute("visibility", "hidden"); cursor = null; }
    };
    const show = (event) => {
      hide();
      const on = event.target.closest ? event.target.closest("[data-tip]") : null;
      const chart = event.target.closest ? event.target.closest(".lines") : null;
      let text = on ? on.dataset.tip : "";
      if (!text && chart) {
        const box = chart.getBoundingClientRect(), share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
        const x = share * Number(chart.dataset.span), lines = [`after ${runPage.elapsed(x)}`];
        for (const line of chart.querySelectorAll(".line")) {
          const points = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number));
          const value = runPage.valueAt(points, x);
          if (value !== null) { lines.push(`${line.dataset.name}: ${line.dataset.unit}${value.toFixed(Number(line.dataset.digits))}`); }
        }
        text = lines.join("\n");
        cursor = chart.querySelector(".cursor");
        cursor.setAttribute("x1", `${share * 100}%`);
        cursor.setAttribute("x2", `${share * 100}%`);
        cursor.setAttribute("visibility", "visible");
      }
      if (!text) { return; }
      tip.textContent = text;
      tip.hidden = false;
      const size = tip.getBoundingClientRect(), wide = page.documentElement.clientWidth, high = page.documentElement.clientHeight;
      const left = event.clientX + 14 + size.width > wide ? event.clientX - 14 - size.width : event.clientX + 14;
      const top = event.clientY + 14 + size.height > high ? event.clientY - 14 - size.height : event.clientY + 14;
      tip.style.left = `${Math.max(left, 4)}px`;
      tip.style.top = `${Math.max(top, 4)}px`;
    };
    page.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") { show(event); } });
    page.addEventListener("click", show);
    page.addEventListener("keydown", (event) => { if (event.key === "Escape") { hide(); } });
    page.addEventListener("scroll", hide, true);
    page.documentElement.addEventListener("pointerleave", hide);
  },
  filter(one) {
    const search = one("search"), group = one("group"), rows = one("event-rows");
    runPage.filtered = () => {
      let shown = 0;
      for (const row of rows.children) {
        row.hidden = !runPage.matches(row.textContent, row.dataset.group, search.value, group.value);
        if (!row.hidden) { shown += 1; }
      }
      one("matches").textContent = `${shown} of ${rows.children.length}`;
    };
    search.addEventListener("input", runPage.filtered);
    group.addEventListener("change", runPage.filtered);
    one("filter").hidden = false;
    runPage.filtered();
  },
  filtered() {},
  // A message of the server: whole parts by name, and rows of events that are newer than what is here.
  put(page, message) {
    for (const [name, text] of Object.entries(message.parts || {})) {
      const part = page.getElementById(`part-${name}`);
      if (!part) { continue; }
      const regions = () => [...part.querySelectorAll("[tabindex]")];
      const places = regions().map((region) => [region.scrollLeft, region.scrollTop]);
      const focus = regions().indexOf(page.activeElement);
      part.innerHTML = text;
      regions().forEach((region, i) => { [region.scrollLeft, region.scrollTop] = places[i] || [0, 0]; });
      if (focus >= 0 && regions()[focus]) { regions()[focus].focus({ preventScroll: true }); }
    }
    const rows = page.getElementById("event-rows");
    if (rows && message.rows) {
      const made = page.createElement("tbody");
      made.innerHTML = message.rows;
      rows.prepend(...made.children);
      while (rows.children.length > Number(rows.dataset.most)) { rows.lastElementChild.remove(); }
      runPage.filtered();
    }
  },
  live(page, one) {
    const place = one("live").dataset.stream, badge = one("connection");
    let source = null, last = one("live").dataset.after || "", heard = Date.now(), timer = 0;
    const say = (text, stale) => {
      if (badge.textContent !== text) { badge.textContent = text; }
      badge.classList.toggle("stale", stale);
    };
    const open = () => {
      if (source) { source.close(); }
      clearTimeout(timer);
      source = new EventSource(last ? `${place}?after=${encodeURIComponent(last)}` : place);
      source.onopen = () => { heard = Date.now(); };
      source.addEventListener("beat", () => { heard = Date.now(); say("live", false); });
      source.addEventListener("state", (event) => {
        heard = Date.now();
        say("live", false);
        if (event.lastEventId) { last = event.lastEventId; }
        runPage.put(page, JSON.parse(event.data));
      });
      source.onerror = () => {
        say("not connected: what is shown may be stale", true);
        // A browser gives up where the server answers with an error; this does not.
        if (source.readyState === EventSource.CLOSED) { clearTimeout(timer); timer = setTimeout(open, runPage.RETRY_MS); }
      };
    };
    // A hidden page asks for nothing: a browser has few connections for each server.
    const wake = () => {
      if (page.hidden) { if (source) { source.close(); source = null; } clearTimeout(timer); return; }
      if (!source) { heard = Date.now(); open(); }
    };
    page.addEventListener("visibilitychange", wake);
    setInterval(() => {
      if (!page.hidden && Date.now() - heard > runPage.QUIET_MS) { heard = Date.now(); say("nothing heard: what is shown may be stale", true); open(); }
    }, 1000);
    wake();
  },
};
if (typeof document !== "undefined") { runPage.start(document); }
