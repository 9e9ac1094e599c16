// A question with its choices as radio buttons, which answer to Tab, the arrow keys and the space
// bar.
function render({ model, el }) {
  const group = document.createElement("fieldset"),
    name = `lv-${Math.random()}`; // each has a module of its own
  group.className = "lv-choices";
  group.style.cssText =
    "border:0;margin:0;padding:0;color:var(--jp-ui-font-color1,inherit);line-height:1.6";
  group.innerHTML =
    `<legend style="padding:0">${model.get("question")}</legend>` +
    model
      .get("choices")
      .map(
        (choice, at) => `<label style="display:block"><input type="radio" name="${name}"
      value="${at}"> ${choice}</label>`,
      )
      .join("") +
    `<p role="status" style="margin:4px 0"></p>`;
  const buttons = [...group.querySelectorAll("input")],
    said = group.querySelector("p");
  const write = () => {
    for (const button of buttons) button.checked = Number(button.value) === model.get("choice");
    said.innerHTML = model.get("said");
  };
  model.on("change:choice", write);
  model.on("change:said", write);
  write();
  group.addEventListener("change", event => {
    model.set("choice", Number(event.target.value));
    model.save_changes();
  });
  // JupyterLab takes single keys for its cells, unless an element asks it not to, and the focus at
  // every key that comes up to the notebook. Shift+Enter and Ctrl+S stay its own: of two keys, the
  // one that is held comes first.
  const keep = event => {
    const held = event.ctrlKey || event.metaKey || event.altKey || event.shiftKey;
    group.toggleAttribute("data-lm-suppress-shortcuts", !held);
    if (!held || ["Control", "Meta", "Alt", "Shift", "Tab"].includes(event.key))
      event.stopPropagation();
  };
  group.toggleAttribute("data-lm-suppress-shortcuts", true);
  group.addEventListener("keydown", keep);
  group.addEventListener("keyup", keep);
  el.append(group);
}

export default { render };
