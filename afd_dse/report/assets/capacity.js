"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  // Pixels between the margins of A4: a chart as wide as the window would be cut on paper.
  const printed = 700;

  function draw(width) {
    for (const key of Object.keys(charts)) {
      const figure = structuredClone(charts[key]);
      if (width) Object.assign(figure.layout, { width: width, autosize: false, hovermode: false });
      const config = { displaylogo: false, responsive: !width, displayModeBar: width ? false : "hover" };
      Plotly.newPlot(document.getElementById("chart-" + key), figure.data, figure.layout, config);
    }
  }

  draw();
  window.addEventListener("beforeprint", () => draw(printed));
  window.addEventListener("afterprint", () => draw());
})();
