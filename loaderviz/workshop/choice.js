// A question with its choices: radio buttons that answer to the browser's own keys. What stands in for it hides itself.
function render({ model, el }) {
  const form = document.createElement("form"), group = document.createElement("fieldset");
  const said = document.createElement("p");
  form.className = "lv-asks";
  form.dataset.lmSuppressShortcuts = "true"; // JupyterLab's arrow keys go to another cell
  form.onkeydown = event => { if (event.key.startsWith("Arrow") || event.key === " ") event.stopPropagation(); };
  form.onsubmit = event => event.preventDefault();
  group.style.cssText = "border: 0; margin: 0; padding: 0";
  const legend = document.createElement("legend");
  legend.innerHTML = model.get("question");
  group.append(legend);
  const buttons = model.get("choices").map((choice, number) => {
    const label = document.createElement("label"), button = document.createElement("input");
    label.style.cssText = "display: block; width: fit-content; padding: 2px 8px";
    Object.assign(button, { type: "radio", name: "choice", value: String(number) });
    button.onchange = () => { model.set("chosen", number); model.save_changes(); };
    label.append(button, " ");
    label.insertAdjacentHTML("beforeend", choice);
    group.append(label);
    return button;
  });
  const show = () => {
    buttons.forEach((button, number) => { button.checked = number === model.get("chosen"); });
    said.innerHTML = model.get("said");
  };
  said.setAttribute("aria-live", "polite");
  form.append(group, said);
  el.append(form);
  model.on("change:chosen", show);
  model.on("change:said", show);
  show();
}
export default { render };
