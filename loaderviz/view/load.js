(() => {
  const registry = (globalThis[Symbol.for("loaderviz.view.1")] ??= {});
  const load = async () => {
    const bytes = Uint8Array.from(atob("%(code)s"), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const address = URL.createObjectURL(
      new Blob([await new Response(stream).text()], { type: "text/javascript" }),
    );
    try {
      return await import(address);
    } finally {
      URL.revokeObjectURL(address);
    }
  };
  (registry["%(name)s"] ??= load()).then(
    module => module.upgradeAll(),
    () => {
      delete registry["%(name)s"];
    },
  );
})();
