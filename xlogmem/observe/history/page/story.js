// What there is to say of a block, a launch or a wait, beside the picture.

const MOST_LINES = 300;
const LONGEST = 10;                         // waits that are listed

function element(name, content = "", kind = "") {
    const made = document.createElement(name);
    made.textContent = content;
    made.className = kind;
    return made;
}

class Story {
    constructor(model, choose, go_to) {
        this.model = model;
        this.events = model.events;
        this.choose = choose;               // a block
        this.go_to = go_to;                 // an event
        this.panel = document.getElementById("story");
    }

    // Of an event that was clicked; null shows what can be clicked.
    show(event) {
        this.panel.replaceChildren();
        if (event === null) this.overview();
        else if (this.model.wait_of.has(event)) this.wait(event);
        else if (["use", "record use"].includes(this.events.kind(event))) this.launch(event);
        else if (this.events.block(event)) this.block(this.events.block(event));
        else this.plain(event);
    }

    show_block(number) {
        this.panel.replaceChildren();
        this.block(number);
    }

    heading(text, facts) {
        this.panel.append(element("h2", text));
        const list = document.createElement("dl");
        for (const [name, value] of facts) if (value !== "") list.append(element("dt", name), element("dd", value));
        this.panel.append(list);
    }

    overview() {
        const {model, events} = this, waits = [...model.wait_of.values()];
        const excessive = waits.filter((wait) => wait.excess).length;
        const warnings = new Map();
        for (const lane of model.rows) for (const event of lane.warnings)
            warnings.set(events.kind(event), (warnings.get(events.kind(event)) ?? 0) + 1);
        this.heading("The whole history", [
            ["events", events.count.toLocaleString("en")], ["oldest dropped", events.facts.dropped ? events.facts.dropped.toLocaleString("en") : ""],
            ["streams", String(model.rows.filter((lane) => lane.stream !== NO_STREAM).length)],
            ["blocks", model.begins.length.toLocaleString("en")], ["peak", bytes_text(model.history_of_bytes.peak)],
            ["waits", waits.length.toLocaleString("en")], ["longer than needed", excessive ? excessive.toLocaleString("en") : ""],
            ...[...warnings].map(([kind, count]) => [kind, count.toLocaleString("en")])]);
        this.panel.append(element("p", "Click a bar, an arrow's head, a red line or a block."));
        this.longest(waits);
    }

    // By how long they held up their streams, if that was recorded; else by how many launches they cover without need.
    longest(waits) {
        const {events} = this, took = (wait) => events.is(wait.event, "wait") ? events.size(wait.event) : 0;
        const timed = waits.some(took), by = timed ? took : (wait) => wait.excess;
        const most = waits.filter(by).sort((a, b) => by(b) - by(a)).slice(0, LONGEST);
        if (!waits.length) return;
        this.panel.append(element("h2", timed ? "The longest waits" : "Waits longer than needed, the worst first"));
        if (!timed) this.panel.append(element("p", "How long waits took was not recorded: record_history(timing=True) does.", "place"));
        const list = element("ol", "", "waits");
        for (const wait of most) {
            const line = document.createElement("li"), link = element("a", this.title_of_wait(wait.event));
            link.onclick = () => this.go_to(wait.event);
            line.append(element("time", timed ? time_text(took(wait) - 1) : counted(wait.excess, "launch")), link);
            this.stack(line, wait.event);
            list.append(line);
        }
        this.panel.append(list);
    }

    title_of_wait(event) {
        const {events} = this, waiting = events.is(event, "host wait") ? "The host" : `Stream ${events.stream(event)}`;
        return `${waiting} waits for ${events.other(event) === NO_STREAM ? "everything" : events.stream_name(events.other(event))}`;
    }

    plain(event) {
        const {events} = this;
        this.heading(`${events.kind(event)} on ${events.stream_name(events.stream(event))}`, [
            ["at", time_text(events.times[event])], ["bytes", events.size(event) ? bytes_text(events.size(event)) : ""],
            ["position", String(events.position(event) || "")]]);
        this.stack(this.panel, event);
    }

    launch(event) {
        const {events} = this, open = events.open(event);
        this.heading(`A launch on ${events.stream_name(events.stream(event))}`, [
            ["at", time_text(events.begin(event))], ["window open", open ? time_text(open) : ""],
            ["thread", String(events.thread(event))], ["position", String(events.position(event))]]);
        this.stack(this.panel, event);
        this.list(this.model.launch(event), (use) => [`${events.access(use)} `, this.link(use)]);
    }

    wait(event) {
        const {events} = this, {needs, excess, source} = this.model.wait_of.get(event);
        const other = events.other(event) === NO_STREAM ? "everything" : events.stream_name(events.other(event));
        this.heading(this.title_of_wait(event), [
            ["at", time_text(events.times[event])], ["covers position", String(events.position(event))],
            ["what it is for", source === NO_EVENT ? "" : time_text(events.times[source])],
            ["held up the stream for", events.size(event) ? time_text(events.size(event) - 1) : ""]]);
        if (excess) this.panel.append(element("p", `Longer than needed: the fence covers ${excess} later `
            + `${excess === 1 ? "launch" : "launches"} of ${other}.`, "bad"));
        this.stack(this.panel, event);
        if (needs.length) this.panel.append(element("p", "Because of"));
        else this.panel.append(element("p", "No use or free needed it: the program requested it, memory is handed out again, or a block was handed back."));
        this.list(needs, (need) => [this.link(need), ` was ${events.access(need)} there${this.newest(need)}`]);
    }

    // Where the use was that is waited for.
    newest(need) {
        const {events} = this;
        for (let event = need - 1; event >= 0; --event)
            if (events.block(event) === events.block(need) && events.stream(event) === events.other(need)
                && ["use", "record use", "allocate"].includes(events.kind(event)))
                return events.place(event) ? ` (${events.place(event)})` : "";
        return "";
    }

    block(number) {
        const {events} = this, story = this.model.story(number), first = story[0];
        const size = largest(story.map((event) => events.size(event)));
        this.heading(events.block_name(first), [
            ["bytes", `${bytes_text(size)} at 0x${events.address(first).toString(16)}`],
            ["tag", events.tag(first) ? events.labels[events.tag(first)] : ""]]);
        this.list(story, (event) => [this.sentence(event)]);
    }

    sentence(event) {
        const {events} = this, kind = events.kind(event), stream = events.stream_name(events.stream(event));
        const other = events.stream_name(events.other(event));
        if (kind === "use" || kind === "record use") return `used on ${stream} (${events.access(event)})`;
        if (kind === "use needs") return `a use on ${stream} needs ${other}, where it was ${events.access(event)}`;
        if (kind === "free needs") return `its free on ${stream} needs ${other}, where it was ${events.access(event)}`;
        const said = {allocate: "allocated", adopt: "adopted", free: "freed", release: "released", evict: "evicted"}[kind];
        return `${said ?? kind} on ${stream}`;
    }

    link(event) {
        const made = element("a", this.events.block_name(event));
        made.onclick = () => this.choose(this.events.block(event));
        return made;
    }

    list(chosen, sentence) {
        const list = document.createElement("ol");
        for (const event of chosen.slice(0, MOST_LINES)) {
            const line = document.createElement("li");
            line.append(element("time", time_text(this.events.times[event])), ...sentence(event));
            this.stack(line, event);
            list.append(line);
        }
        if (chosen.length > MOST_LINES) list.append(element("li", `and ${chosen.length - MOST_LINES} more`));
        this.panel.append(list);
    }

    stack(parent, event) {
        const frames = this.events.frames(event);
        if (!frames) return;
        const details = document.createElement("details");
        details.append(element("summary", frames.place, "place"), element("pre", frames.stack.join("\n")));
        parent.append(details);
    }
}
