// Runs inside an inspector page: clicks, hovers and types everywhere, then sends a report to the page around it.
"use strict";
function clickEverything() {
  const report = { problems: PROBLEMS, cells: [], tables: [], actions: 0, injected: window.injected === true, background: getComputedStyle(document.body).backgroundColor };
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = selector => document.querySelector(selector);
  const expect = (holds, text) => { if (!holds) PROBLEMS.push(text); };
  const act = (node, type, options = {}) => {
    report.actions++;
    const Kind = type === "keydown" ? KeyboardEvent : type === "input" || type === "change" ? Event : MouseEvent;
    node.dispatchEvent(new Kind(type, { bubbles: true, cancelable: true, ...options }));
  };
  const press = key => act(document.activeElement, "keydown", { key });
  const marks = () => all(".mark").length;
  const wrongText = (where, node) => {
    const text = node.textContent.replaceAll("zerosNaNvalues", ""), place = text.search(/undefined|\[object|NaN/);
    expect(place < 0, `${where}: ${text.slice(place - 30, place + 30)}`);
  };
  const fits = where => expect(document.documentElement.scrollWidth <= innerWidth, `${where}: the page scrolls sideways, ${document.documentElement.scrollWidth} > ${innerWidth}`);

  fits("at the beginning");
  wrongText("at the beginning", one(".page"));
  for (const node of all("button, select, input, svg[tabindex]")) {
    const name = node.getAttribute("aria-label") || (node.labels?.[0] || node).textContent.trim();
    expect(name, `no name: ${node.outerHTML.slice(0, 80)}`);
  }
  for (const select of all("select")) {
    for (const option of all("option", select)) {
      select.value = option.value;
      act(select, "change");
      fits("menu");
      wrongText("menu", one(".page"));
    }
  }
  for (const button of all(".piece")) {
    act(button, "click");
    report.tables.push(one("#table").innerText);
    expect(all(".piece[aria-pressed=true]").length === 1 && button.getAttribute("aria-pressed") === "true", "one piece is pressed");
    if (button.closest("ol").querySelector(".piece") === button) {
      for (const index of all("#score .hit").keys()) act(all("#score .hit")[index], "click");
    }
    fits("piece");
    wrongText("piece", one("#pipelines"));
  }
  for (const svg of all("#grids svg")) {
    for (const rect of all(".cell", svg)) {
      act(rect, "mouseover");
      act(rect, "click");
      const lines = Object.fromEntries(all("#panel tr").map(row => [row.cells[0].textContent, row.cells[1].textContent]));
      report.cells.push([all("#grids svg").indexOf(svg), +rect.dataset.cell, one("#panel h3").textContent, lines, one("#panel p")?.textContent]);
      expect(marks() > 0 && document.activeElement === svg, `a cell without a mark or focus: ${rect.dataset.cell}`);
      wrongText("cell", one("#panel"));
    }
    svg.focus();
    for (const key of ["Home", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End"]) press(key);
    fits("cell");
    press("Enter");
    expect(document.activeElement.id === "panel", "Enter opens the panel");
    press("Escape");
    expect(document.activeElement === svg, "Escape goes back to the batch");
    expect(marks() === 0, `${marks()} marks are left`);
  }
  for (const rect of all("#ribbons .cell")) {
    act(rect, "mouseover");
    act(rect, "click");
    expect(marks() > 0, `a step without a mark: ${rect.dataset.place}`);
    wrongText("step", one("#panel"));
  }
  one("#ribbons svg").focus();
  for (const key of ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Enter"]) press(key);
  const slider = one("#compare input");
  for (let value = 0; slider && value <= +slider.max; value++) {
    slider.value = value;
    act(slider, "input");
    wrongText("slider", one("#compare"));
  }
  for (const index of all("#charts svg").keys()) {
    const box = all("#charts svg")[index].getBoundingClientRect();
    act(all("#charts svg")[index], "click", { clientX: box.left + box.width / 2, clientY: box.top + 5 });
    wrongText("chart", one("#charts"));
  }
  for (const button of all("header button")) act(button, "click");
  if (one("#panel .close")) act(one("#panel .close"), "click");
  fits("at the end");
  act(document.body, "keydown", { key: "Escape" });
  expect(marks() === 0, `${marks()} marks are left at the end`);
  report.text = one(".page").innerText;
  parent.postMessage({ name: window.name, report }, "*");
}
try {
  clickEverything();
} catch (error) {
  parent.postMessage({ name: window.name, report: { problems: [...PROBLEMS, error.stack] } }, "*");
}
