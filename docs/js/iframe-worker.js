// Search runs in a Worker, which browsers refuse to pages that are opened from the disk. There a hidden
// frame does the same: it loads the same script, and messages go to and fro.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = (this.inner = frame.contentWindow);
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src: address, onload: done, onerror: failed });
          inner.document.head.append(script);
        });
      inner.importScripts = (...urls) => urls.reduce((before, u) => before.then(() => load(u)), Promise.resolve());
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
