// What is dropped on the start page, or chosen there, is copied to the machine that runs splatstudio, and opened.
// It runs in the head of the page: nothing can be dropped before it listens, which the browser would open itself.
(() => {
  const block = 256 * 1024, ahead = 4 * 1024 * 1024;  // bytes of a message, and that the browser holds ready
  let told, bar;  // on the front alone, and not before it is there
  let busy = false, refused = "";

  const say = text => { told.textContent = refused ? `${text.replace(/\.$/, "")}. ${refused}` : text; };
  const hidden = path => path.split("/").some(part => part.startsWith("."));

  // A folder tells its entries by and by, an empty list at the end.
  const entriesOf = reader => new Promise((done, failed) => {
    const found = [];
    const next = () => reader.readEntries(some => {
      found.push(...some);
      some.length ? next() : done(found);
    }, failed);
    next();
  });
  const filesOf = async (entry, above, found) => {
    const path = above + entry.name;
    if (hidden(path)) return;
    if (entry.isFile) found.push([path, await new Promise((done, failed) => entry.file(done, failed))]);
    else for (const each of await entriesOf(entry.createReader())) await filesOf(each, path + "/", found);
  };

  const answer = line => new Promise((done, failed) => {
    line.onmessage = event => {
      const said = JSON.parse(event.data);
      said.error ? failed(new Error(said.error)) : done(said);
    };
    line.onclose = () => failed(new Error("The line to splatstudio was cut: drop it again."));
  });

  const send = async (line, files, total) => {
    let sent = 0;
    for (const [path, file] of files)
      for (let at = 0; at < file.size; at += block) {
        line.send(await file.slice(at, at + block).arrayBuffer());
        sent += Math.min(block, file.size - at);
        while (line.bufferedAmount > ahead && line.readyState === 1) await new Promise(next => setTimeout(next, 20));
        bar.value = total ? (sent - line.bufferedAmount) / total : 1;
        say(`Copying ${path}`);
      }
  };

  const copy = async files => {
    if (busy) {  // said beside how far the copy is
      if (files.length) refused = `${files[0][0]} was not taken: drop it again when this is done`;
      return;
    }
    refused = "";
    const {key, endpoint, files: most} = told.dataset;
    if (files.length > most) {
      say(`${files.length.toLocaleString("en")} files are more than the ${Number(most).toLocaleString("en")} that can be copied at once.`);
      return;
    }
    busy = true;
    let leaves = false;
    bar.hidden = false;
    const line = new WebSocket(`${location.origin.replace("http", "ws")}${endpoint}`);
    try {
      const taken = answer(line);
      await Promise.race([new Promise(done => { line.onopen = done; }), taken]);
      line.send(JSON.stringify({key, files: files.map(([path, file]) => [path, file.size])}));
      await taken;
      const done = answer(line);
      done.catch(() => {});  // it is waited for below
      const total = files.reduce((sum, [, file]) => sum + file.size, 0);
      await Promise.race([send(line, files, total), done]);
      const {opens, place} = await done;
      say(opens ? `Opening ${place}` : `It lies in ${place}; something else is being opened.`);
      leaves = opens;
      if (opens) setTimeout(() => location.assign("/"), refused ? 3000 : 0);  // long enough to be read
    } catch (error) {
      say(error.name === "NotFoundError" || error.name === "NotReadableError"
        ? "A file cannot be read: is it still there?" : error.message);
    } finally {
      line.onclose = null;
      line.close();
      bar.hidden = true;
      busy = leaves;  // what is dropped before the page goes would be cut off with it
    }
  };

  const dropped = async transfer => {
    const files = [], plain = [...transfer.files];
    const entries = [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
    for (const entry of entries) await filesOf(entry, "", files);
    return entries.length ? files : plain.map(file => [file.name, file]);
  };

  const find = () => {
    told = document.getElementById("drop-told");
    bar = document.getElementById("drop-bar");
    return told && bar;
  };
  const carriesFiles = event => event.dataTransfer?.types.includes("Files") && find();
  addEventListener("dragover", event => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.documentElement.classList.add("over");
  });
  addEventListener("dragleave", event => {
    if (!event.relatedTarget) document.documentElement.classList.remove("over");
  });
  addEventListener("drop", event => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.documentElement.classList.remove("over");
    dropped(event.dataTransfer).then(copy, error => say(error.message));
  });

  addEventListener("DOMContentLoaded", () => {
    if (!find()) return;
    for (const what of ["files", "folder"]) {
      const input = document.getElementById(`drop-${what}`);
      document.getElementById(`choose-${what}`).addEventListener("click", () => input.click());
      input.addEventListener("change", () => {
        const files = [...input.files].map(file => [file.webkitRelativePath || file.name, file]);
        input.value = "";
        copy(files.filter(([path]) => !hidden(path)));
      });
    }
  });
})();
