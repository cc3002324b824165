"use strict";
// The slider, the tooltips and the search of a plan's page. Without them the page has all the same figures.
const planPage = {
  // Index of the step that a budget buys; -1 if it buys nothing. Steps are sorted by "from".
  stepAt(steps, budget) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].from <= budget) { low = middle + 1; } else { high = middle; }
    }
    return low - 1;
  },
  // Where a value is on an axis [most, start, end], and the value at a place.
  place([most, start, end], value) { return start + (end - start) * value / most; },
  value([most, start, end], place) { return most * (place - start) / (end - start); },
  // Row of the machine that is nearest to a place, within so many pixels; -1 if none is.
  nearest(machines, x, y, left, top, within) {
    let found = -1, best = within * within;
    machines.forEach((machine, row) => {
      const across = planPage.place(x, machine[3]) - left, up = planPage.place(y, machine[4]) - top;
      const distance = across * across + up * up;
      if (distance <= best) { best = distance; found = row; }
    });
    return found;
  },
  // "3 x g5.xlarge spot + 1 on demand", as the table has it.
  machineWords(types, [type, spot, onDemand]) {
    const name = types[type];
    if (!spot) { return `${onDemand} x ${name}`; }
    return `${spot} x ${name} spot` + (onDemand ? ` + ${onDemand} on demand` : "");
  },
  short(value) {
    for (const [letter, size, least] of [["G", 1e9, 999.5e6], ["M", 1e6, 999.5e3], ["k", 1e3, 9995]]) {
      if (value >= least) { return String(Number((value / size).toPrecision(3))) + letter; }
    }
    return String(Number(value.toPrecision(3)));
  },
  // How a step compares with the one that the request's budget buys; empty where there is nothing to compare.
  compared(step, asked) {
    if (!asked || !step || step === asked || !asked.speed || !asked.usd) { return ""; }
    const change = (ratio, more, less, same) => {
      if (Math.abs(ratio - 1) < 0.005) { return same; }
      if (ratio >= 2) { return `${ratio.toFixed(1)} times ${same === "as fast" ? "as fast" : "the price"}`; }
      return `${(Math.abs(ratio - 1) * 100).toFixed(0)} % ${ratio > 1 ? more : less}`;
    };
    const speed = change(step.speed / asked.speed, "faster", "slower", "as fast");
    const price = change(step.usd / asked.usd, "dearer", "cheaper", "as dear");
    return `Against the plan for the request's budget: ${speed}, ${price}.`;
  },
  // Whether a row's text has all words of a search.
  matches(text, query) {
    const lower = text.toLowerCase();
    return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
  },
  start(page) {
    const one = (id) => page.getElementById(id);
    const data = JSON.parse(one("data").textContent);
    const search = one("search"), rows = [...page.querySelectorAll("#fates tbody tr")];
    const filter = () => {
      const shown = rows.filter((row) => { row.hidden = !planPage.matches(row.textContent, search.value); return !row.hidden; });
      one("matches").textContent = `${shown.length} of ${rows.length}`;
    };
    search.addEventListener("input", filter);
    one("searching").hidden = false;
    filter();
    if (one("chart")) { planPage.chart(page, one, data); }
  },
  chart(page, one, data) {
    const rows = [...page.querySelectorAll(".steps tr")].map((row) => [...row.cells].slice(1).map((cell) => cell.textContent));
    const header = rows[0], { x, y } = data, steps = data.steps.map((step, i) => ({ ...step, cells: rows[i + 1] }));
    const slider = one("budget"), svg = one("chart"), tip = one("tip");
    const asked = steps[planPage.stepAt(steps, data.budget)];
    const make = (name, text) => { const made = page.createElement(name); made.textContent = text; return made; };
    let budget = data.budget;
    const show = (amount) => {
      budget = amount;
      const step = steps[planPage.stepAt(steps, amount)], line = one("chosen-line"), dot = one("chosen"), best = one("best");
      const money = `$${amount.toFixed(2)}/h`;
      one("budget-text").textContent = money;
      slider.setAttribute("aria-valuetext", step ? `${money}: ${step.cells[0]}` : `${money}: nothing is that cheap`);
      const place = planPage.place(x, amount);
      line.setAttribute("x1", place); line.setAttribute("x2", place);
      line.setAttribute("visibility", amount === data.budget ? "hidden" : "visible");
      dot.setAttribute("visibility", step ? "visible" : "hidden");
      best.replaceChildren();
      if (!step) { best.append(make("p", "Nothing is that cheap.")); return; }
      dot.setAttribute("cx", planPage.place(x, step.usd)); dot.setAttribute("cy", planPage.place(y, step.speed));
      const list = make("dl", "");
      header.forEach((name, i) => {
        const pair = make("div", "");
        pair.append(make("dt", name), make("dd", step.cells[i]));
        list.append(pair);
      });
      best.append(list, make("p", planPage.compared(step, asked)));
    };
    const move = (amount) => { slider.value = amount; show(amount); };
    slider.addEventListener("input", () => show(Number(slider.value)));
    one("cheaper").addEventListener("click", () => move(steps[Math.max(planPage.stepAt(steps, budget) - 1, 0)].from));
    one("faster").addEventListener("click", () => move(steps[Math.min(planPage.stepAt(steps, budget) + 1, steps.length - 1)].from));
    const at = (event) => {
      const box = svg.getBoundingClientRect(), size = svg.viewBox.baseVal;
      return [(event.clientX - box.left) * size.width / box.width, (event.clientY - box.top) * size.height / box.height];
    };
    svg.addEventListener("pointermove", (event) => {
      const [left, top] = at(event), row = planPage.nearest(data.machines, x, y, left, top, 7);
      const step = steps[planPage.stepAt(steps, planPage.value(x, left))];
      tip.hidden = row < 0 && !step;
      if (tip.hidden) { return; }
      const machine = data.machines[row];
      tip.textContent = machine
        ? `${planPage.machineWords(data.types, machine)}: $${machine[3].toFixed(2)}/h, ${planPage.short(machine[4])} ${data.unit}`
        : `Best from $${step.from.toFixed(2)}/h: ${step.cells[0]}, $${step.cells[1]}/h, ${step.cells[2]} ${data.unit}`;
      const box = tip.parentElement.getBoundingClientRect();
      const far = event.clientX - box.left > box.width / 2;
      tip.style.left = far ? "auto" : `${event.clientX - box.left + 14}px`;
      tip.style.right = far ? `${box.right - event.clientX + 14}px` : "auto";
      tip.style.top = `${event.clientY - box.top + 14}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    svg.addEventListener("click", (event) => move(Math.min(Math.max(planPage.value(x, at(event)[0]), 0), x[0])));
    one("choose").hidden = false;
    show(data.budget);
  },
};
if (typeof document !== "undefined") { planPage.start(document); }
