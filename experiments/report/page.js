// Draws the plots in the colors of the page, again whenever these change, and copies commands.
(() => {
  "use strict";
  const plots = JSON.parse(document.getElementById("plots-data").textContent);
  const symbols = ["circle", "diamond", "square", "triangle-up", "x", "star", "pentagon", "cross"];
  // Bars differ by more than their color, too.
  const patterns = ["", "/", "x", ".", "\\", "+", "-", "|"];

  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "gray";

  // A category may occur twice ("1" for two rows), so that points have numbers as places.
  function trace(plot, series, index) {
    const places = plot.x.labels.map((_, k) => k);
    const common = {
      name: series.name,
      x: places,
      y: series.y,
      customdata: plot.x.labels,
      hovertemplate: plot.x.title + " %{customdata}: %{y:.4~g}<extra>" + series.name + "</extra>",
    };
    const own = color(series.color);
    if (plot.kind === "bars") {
      return {
        ...common,
        type: "bar",
        marker: {
          color: own,
          line: { color: own, width: 1 },
          pattern: { shape: patterns[index % patterns.length], fillmode: "overlay", fgcolor: color("paper"), size: 6, solidity: 0.25 },
        },
      };
    }
    return {
      ...common,
      type: "scatter",
      mode: "lines+markers",
      connectgaps: true,
      line: { color: own, dash: series.dash, width: 2 },
      marker: { color: own, symbol: symbols[index % symbols.length], size: 8 },
    };
  }

  function draw(plot) {
    const place = document.getElementById(plot.id);
    // On a phone each series has a line of its own in the legend.
    place.style.height = place.clientWidth < 500 ? 16 + 1.3 * plot.series.length + "rem" : "";
    const axis = { gridcolor: color("line"), linecolor: color("line"), zerolinecolor: color("line"), automargin: true, fixedrange: true };
    const few = plot.x.labels.length > 40 ? Math.ceil(plot.x.labels.length / 20) : 1;
    const shown = plot.x.labels.map((_, k) => k).filter((k) => k % few === 0);
    return Plotly.react(
      place,
      plot.series.map((series, index) => trace(plot, series, index)),
      {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: color("ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
        margin: { l: 10, r: 10, t: 15, b: 10 },
        xaxis: { ...axis, title: { text: plot.x.title }, tickvals: shown, ticktext: shown.map((k) => plot.x.labels[k]) },
        yaxis: { ...axis, title: { text: plot.y.title }, rangemode: "tozero" },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" },
        hovermode: "closest",
        hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily } },
        barmode: "group",
        bargap: 0.3,
        dragmode: false,
        showlegend: true,
      },
      { responsive: true, displayModeBar: false },
    );
  }

  function drawAll() {
    if (typeof Plotly === "undefined") {
      for (const plot of plots) document.getElementById(plot.id).textContent = "The library that draws the plots is missing here.";
      return Promise.resolve();
    }
    return Promise.all(plots.map(draw));
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    const select = () => getSelection().selectAllChildren(code);
    const say = (text) => {
      button.textContent = text;
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    // Where the browser does not let a page write to the clipboard, the text is selected for the user to copy.
    if (!navigator.clipboard) {
      select();
      say("selected");
      return;
    }
    navigator.clipboard.writeText(code.textContent).then(() => say("copied"), () => { select(); say("selected"); });
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll);
  // For tests and for whoever takes pictures of the page.
  window.plotsDrawn = drawAll();
})();
