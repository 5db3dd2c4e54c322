/* A page that is opened from disk may not start workers, and the search of the site needs one.
   There the script of a worker runs in a hidden frame instead; messages go through the frame's window. */
"use strict";
if (location.protocol === "file:") {
  const message = (data) => new MessageEvent("message", { data: structuredClone(data) }); // as a worker would: a copy
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.dispatch(message(data)));
      const script = inside.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((done) => script.addEventListener("load", done));
      inside.document.body.append(script);
    }
    dispatch(event) {
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(message(data)));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
