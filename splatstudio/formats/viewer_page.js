// Chromium starts no module worker of a blob in a page from a disk, without a word: the splats would be drawn
// in the order of the file. Where the constructor fails, the client hands it the source itself, which works.
if (location.protocol === "file:") {
  const Native = window.Worker;
  window.Worker = class extends Native {
    constructor(url, options) {
      if (String(url).startsWith("blob:") && options?.type === "module") throw new Error("no blobs here");
      super(url, options);
    }
  };
}
