// Draws the plots in the colors of the page, again whenever these change, and copies commands.
(() => {
  "use strict";
  const plots = JSON.parse(document.getElementById("plots-data").textContent);
  // What has a color has a symbol and a pattern, too, the same ones in every plot.
  const colors = ["measured", "planned", "simulated", "published", "published-2", "published-3", "interrupted", "failed"];
  const look = (name) => Math.max(name.startsWith("curve-") ? Number(name.slice(6)) - 1 : colors.indexOf(name), 0);
  const symbols = ["circle", "diamond", "square", "triangle-up", "x", "star", "pentagon", "cross"];
  const patterns = ["", "/", "x", ".", "\\", "+", "-", "|"];

  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "gray";

  // A category may occur twice ("1" for two rows), so that points have numbers as places.
  function trace(plot, series) {
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
          pattern: { shape: patterns[look(series.color)], fillmode: "overlay", fgcolor: color("paper"), size: 6, solidity: 0.25 },
        },
      };
    }
    return {
      ...common,
      type: "scatter",
      mode: "lines+markers",
      connectgaps: true,
      line: { color: own, dash: series.dash, width: 2 },
      marker: { color: own, symbol: symbols[look(series.color)], size: 8 },
    };
  }

  // Says in the place of a bar why there is none.
  function marks(plot) {
    if (plot.kind !== "bars") return [];
    const count = plot.series.length;
    return plot.series.flatMap((series, index) => (series.marks || []).flatMap((text, k) => text ? [{
      text, x: k - 0.35 + (0.7 * (index + 0.5)) / count, y: 0, textangle: -90, xanchor: "center", yanchor: "bottom",
      showarrow: false, font: { color: color(series.color), size: 12 },
    }] : []));
  }

  function draw(plot) {
    const place = document.getElementById(plot.id);
    // Where names are long or the page is narrow, each series has a line of its own in the legend.
    const lines = plot.series.length === 1 ? 0 : place.clientWidth < 500 || plot.series.length > 4 ? plot.series.length : 1;
    const axis = { gridcolor: color("line"), linecolor: color("line"), zerolinecolor: color("line"), automargin: true, fixedrange: true };
    const few = plot.x.labels.length > 40 ? Math.ceil(plot.x.labels.length / 20) : 1;
    const shown = plot.x.labels.map((_, k) => k).filter((k) => k % few === 0);
    // Labels that do not fit beside each other stand upright: slanted ones leave the plot at its right edge.
    const upright = shown.reduce((sum, k) => sum + 8 * plot.x.labels[k].length + 10, 0) > place.clientWidth - 60;
    const below = upright ? 0.45 * Math.max(...shown.map((k) => plot.x.labels[k].length)) : 0;
    place.style.height = 17 + 1.3 * lines + below + "rem";
    const repeated = plot.title.toLowerCase().startsWith(plot.y.title.toLowerCase());
    return Plotly.react(
      place,
      plot.series.map((series) => trace(plot, series)),
      {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: color("ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
        margin: { l: 10, r: 10, t: 15, b: 10 },
        xaxis: { ...axis, title: { text: plot.x.title }, tickvals: shown, ticktext: shown.map((k) => plot.x.labels[k]), tickangle: upright ? -90 : 0, range: plot.kind === "bars" ? [-0.5, plot.x.labels.length - 0.5] : undefined },
        yaxis: { ...axis, title: { text: repeated ? "" : plot.y.title }, rangemode: "tozero" },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" },
        hovermode: "closest",
        hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily } },
        barmode: "group",
        bargap: 0.3,
        dragmode: false,
        showlegend: plot.series.length > 1,
        annotations: marks(plot),
      },
      { responsive: true, displayModeBar: false },
    );
  }

  // Plotly is in the page as base64 of gzip, which takes 2 MB instead of 5.
  async function load() {
    const packed = document.getElementById("plotly");
    if (!packed || typeof DecompressionStream === "undefined") return false;
    const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    return true;
  }
  const loaded = load();

  async function drawAll() {
    if (await loaded) return Promise.all(plots.map(draw));
    for (const plot of plots) {
      document.getElementById(plot.id).textContent = document.getElementById("plotly")
        ? "This browser is too old for the plots (it has no DecompressionStream). The table holds the figures."
        : "The library that draws the plots is missing here. The table holds the figures.";
    }
  }

  // Boxes that hold more than they show fade out at that side, and say so.
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "scroll sideways for more →";
    hint.setAttribute("aria-hidden", "true");
    box.after(hint);
    const look = () => {
      const hidden = box.scrollWidth - box.clientWidth;
      box.classList.toggle("more", hidden - box.scrollLeft > 1);
      hint.hidden = hidden <= 1;
    };
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(box);
    if (box.firstElementChild) new ResizeObserver(look).observe(box.firstElementChild);
    look();
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
  // For tests, and for the program that takes pictures of the page.
  window.plotsDrawn = drawAll();
})();
