"use strict";
// What the page does without its server; called from the callbacks of explore.py.
window.afd = (function () {
  const root = document.documentElement;
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const turns = {};
  const unchanged = () => window.dash_clientside.no_update;

  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : media.matches;
  }

  function painted(figure) {
    if (!figure) return unchanged();
    const narrow = window.innerWidth < 600;
    const copy = structuredClone(figure);
    if (narrow) {
      copy.layout.legend = Object.assign({}, copy.layout.legend, { font: { size: 11 } });
      copy.layout.height = (copy.layout.height || 400) + 60;
      for (const axis of [copy.layout.xaxis, copy.layout.yaxis]) if (axis && axis.title) axis.title.font = { size: 12 };
    }
    return dark() ? repainted(copy, window.afdDark) : copy;
  }

  function theme(clicks) {
    try {
      if (clicks) localStorage.setItem("afd-theme", dark() ? "light" : "dark");
      const kept = localStorage.getItem("afd-theme");
      if (kept) root.dataset.theme = kept;
    } catch (error) {
      if (clicks) root.dataset.theme = dark() ? "light" : "dark";
    }
    root.dataset.shown = dark() ? "dark" : "light";
    return [root.dataset.shown, dark() ? "Light page" : "Dark page"];
  }

  // A slider's position is logarithmic between the least and the greatest value; its end is the limit of the search.
  function limit(name, position, value, span, steps) {
    if (!span) return [unchanged(), unchanged()];
    const wide = Math.log(span.high / span.low) || 1;
    const moved = window.dash_clientside.callback_context.triggered_id === "slider-" + name;
    if (!moved) {
      if (value === null || value === undefined || value === "") return [steps, unchanged()];
      const place = Math.round((steps * Math.log(value / span.low)) / wide);
      return [Math.min(Math.max(place, 0), steps), unchanged()];
    }
    position = Number(position);
    if (position >= steps) turns[name] = (turns[name] || 0) + 1;
    if (position >= steps) return [unchanged(), span.searched === undefined ? null : span.searched];
    const chosen = Number((span.low * Math.exp((wide * position) / steps)).toPrecision(3));
    // While the slider is dragged only its latest position counts, once it rests for a moment.
    const turn = (turns[name] = (turns[name] || 0) + 1);
    return new Promise((done) => {
      setTimeout(() => done([unchanged(), turn === turns[name] ? chosen : unchanged()]), 40);
    });
  }

  function address(link) {
    window.history.replaceState(null, "", window.location.pathname + link);
    return window.location.href;
  }

  function copied() {
    const text = window.location.href;
    const said = "Link copied";
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => said, () => text);
    return text;
  }

  function image() {
    const graph = document.querySelector("#chart .js-plotly-plot");
    const background = getComputedStyle(document.body).backgroundColor;
    const figure = { data: graph.data, layout: Object.assign({}, graph.layout, { paper_bgcolor: background }) };
    window.Plotly.downloadImage(figure, { format: "png", width: 1200, height: 700, scale: 2, filename: "afd-dse" });
  }

  function panel(name) {
    const explore = name === "explore";
    window.requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
    return [!explore, explore, explore ? "current" : "", explore ? "" : "current"];
  }

  function toPanel() {
    return window.dash_clientside.callback_context.triggered_id === "to-explore" ? "explore" : "new";
  }

  // Labels of controls that are not plain inputs, and of inputs whose id is not text.
  function label() {
    for (const box of document.querySelectorAll(".labelled")) {
      const text = box.querySelector("label");
      if (!text || !text.id) continue;
      const button = box.querySelector("button.dash-dropdown");
      if (button && !(button.getAttribute("aria-labelledby") || "").startsWith(text.id)) {
        button.setAttribute("aria-labelledby", text.id + " " + (button.getAttribute("aria-labelledby") || ""));
      }
      const target = box.querySelector("input.dash-dropdown-focus-target");
      if (target && target.hasAttribute("aria-hidden")) {
        target.removeAttribute("aria-hidden");
        target.setAttribute("aria-labelledby", text.id);
      }
      const input = box.querySelector("input:not(.dash-dropdown-focus-target):not([type=checkbox]):not([type=search])");
      if (input && !button && !input.getAttribute("aria-labelledby")) input.setAttribute("aria-labelledby", text.id);
      const problem = box.querySelector(".error");
      if (input && problem) input.setAttribute("aria-invalid", problem.textContent ? "true" : "false");
    }
    for (const box of document.querySelectorAll(".limit")) {
      const thumb = box.querySelector("[role=slider]");
      const exact = box.querySelector("input[type=number]");
      if (!thumb || !exact) continue;
      thumb.setAttribute("aria-label", box.querySelector("label").textContent);
      thumb.setAttribute("aria-valuetext", exact.value ? exact.value + " ms" : "none");
    }
    for (const list of document.querySelectorAll(".dash-checklist")) {
      if (list.getAttribute("role") === "listbox") {
        list.setAttribute("role", "group");
        for (const option of list.querySelectorAll("[role=option]")) option.removeAttribute("role");
      }
    }
  }
  new MutationObserver(label).observe(document, { childList: true, subtree: true, characterData: true });

  return { painted, theme, limit, address, copied, image, panel, toPanel };
})();
