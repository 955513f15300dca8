(function () {
  const held = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const choice = { front: null };
  const pins = [];

  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : media.matches;
  }

  function figureOf(key) {
    const variants = held.charts[key];
    const figure = structuredClone(variants[choice[key] || ""] || Object.values(variants)[0]);
    for (const trace of figure.data) {
      if (Array.isArray(trace.text)) trace.text = trace.text.map((index) => held.texts[index]);
    }
    return dark() ? repainted(figure, held.dark) : figure;
  }

  function draw(key) {
    const box = document.getElementById("chart-" + key);
    const figure = figureOf(key);
    if (box.clientWidth < 560) {
      figure.layout.legend.font = { size: 11 };
      figure.layout.height = (figure.layout.height || 400) + 40;
      for (const axis of [figure.layout.xaxis, figure.layout.yaxis]) {
        if (axis.title) axis.title.font = { size: 12 };
      }
      if (key === "modes") {
        // The labels stand in the table below; beside the bars there is no room for them.
        for (const trace of figure.data) trace.text = trace.text.map((text) => text.split("  ")[0]);
      }
    }
    const image = { format: "png", scale: 2, filename: "afd-dse-" + key };
    const buttons = ["lasso2d", "select2d", "autoScale2d"];
    const config = { displaylogo: false, responsive: true, toImageButtonOptions: image, modeBarButtonsToRemove: buttons };
    return Plotly.react(box, figure.data, figure.layout, config);
  }

  function drawAll() {
    root.dataset.shown = dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    button.textContent = dark() ? "Light page" : "Dark page";
    for (const dot of document.querySelectorAll("[data-colour]")) {
      dot.style.background = dark() ? held.dark[dot.dataset.colour] : dot.dataset.colour;
    }
    return Promise.all(Object.keys(held.charts).filter((key) => document.getElementById("chart-" + key)).map(draw));
  }

  // -- the axes of the front, and pins -------------------------------------------------------------------------------

  function switchAxes() {
    const x = document.getElementById("axis-x").value;
    const y = document.getElementById("axis-y").value;
    const name = x + "|" + y;
    const missing = document.getElementById("front-missing");
    missing.hidden = name in held.charts.front;
    missing.textContent = x === y ? "Both axes are the same; choose another one." : "This result has no values for these axes.";
    document.getElementById("front-definition").textContent =
      held.metrics[x].title + ": " + held.metrics[x].definition + ". " + held.metrics[y].title + ": " + held.metrics[y].definition + ".";
    if (!missing.hidden) return;
    choice.front = name;
    draw("front");
    fillChoices();
  }

  function valueOf(row, column) {
    return held.points.rows[row][held.points.columns.indexOf(column)];
  }

  function fillChoices() {
    const list = document.getElementById("pin-choice");
    list.length = 1;
    for (const trace of figureOf("front").data) {
      if (!trace.customdata) continue;
      const group = document.createElement("optgroup");
      group.label = trace.name;
      for (const row of numbers(trace.customdata)) {
        const option = document.createElement("option");
        option.value = row;
        option.textContent = valueOf(row, "label") + ", " + shown(valueOf(row, "tokens_per_s_per_user")) + " tokens/s per user";
        group.appendChild(option);
      }
      list.appendChild(group);
    }
  }

  function numbers(packed) {
    if (Array.isArray(packed)) return packed;
    const bytes = Uint8Array.from(atob(packed.bdata), (letter) => letter.charCodeAt(0)).buffer;
    const kinds = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array, f8: Float64Array };
    return Array.from(new kinds[packed.dtype](bytes));
  }

  function shown(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  function pin(row) {
    const known = pins.indexOf(row);
    if (known >= 0) pins.splice(known, 1);
    else pins.push(row);
    if (pins.length > 2) pins.shift();
    showPins();
  }

  function showPins() {
    const box = document.getElementById("pins");
    box.replaceChildren();
    if (!pins.length) return;
    const table = document.createElement("table");
    const caption = table.createCaption();
    caption.textContent = pins.length > 1 ? "Pinned deployments; what differs is bold" : "Pinned deployment; pin another to compare";
    for (const column of held.points.columns) {
      const values = pins.map((row) => valueOf(row, column));
      const line = table.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      const metric = held.metrics[column];
      head.textContent = metric ? metric.title : column.replaceAll("_", " ");
      if (metric) head.title = metric.definition;
      line.appendChild(head);
      for (const value of values) {
        const cell = line.insertCell();
        cell.textContent = shown(value);
        if (values.length > 1 && values[0] !== values[1]) cell.className = "differs";
      }
    }
    const clear = document.createElement("button");
    clear.type = "button";
    clear.textContent = "Remove pins";
    clear.addEventListener("click", () => { pins.length = 0; showPins(); });
    box.append(table, clear);
  }

  // -- start ---------------------------------------------------------------------------------------------------------

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    drawAll();
  });
  media.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => { root.dataset.theme = "light"; drawAll(); });

  if (held.charts.front) {
    document.getElementById("axis-x").addEventListener("change", switchAxes);
    document.getElementById("axis-y").addEventListener("change", switchAxes);
    document.getElementById("pin-choice").addEventListener("change", (event) => {
      if (event.target.value) pin(Number(event.target.value));
      event.target.value = "";
    });
    switchAxes();
  }
  drawAll().then(() => {
    const box = document.getElementById("chart-front");
    if (box) {
      box.on("plotly_click", (event) => {
        const row = event.points[0].customdata;
        if (row !== undefined) pin(Number(row));
      });
    }
    root.dataset.ready = "yes";
  });
})();
