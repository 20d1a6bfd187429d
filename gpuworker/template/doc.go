// Package template renders the chat templates that come inside model files into prompts.
//
// Templates are Jinja, written by strangers, and treated as hostile. gonja evaluates them, but cannot be interrupted and
// allocates without asking ("a" * 100000000000), so a template lives in a child process of its own: this binary again,
// started with a hidden argument, without environment or files, under a limit on memory, and killed when its time is up.
// A binary that uses the package therefore calls MaybeChild before anything else in main, and a test binary in TestMain.
//
// New parses a template once and keeps its child; Render asks the child for a prompt, and starts another one if the
// child had to be killed, or was killed or stopped by somebody else; Close ends it. Rendering is a function of the
// template and the Input alone. Templates see what they see elsewhere in the field: messages, add_generation_prompt,
// bos_token, eos_token, raise_exception, strftime_now, namespace, tojson without HTML escapes, loop controls, and
// blocks trimmed (trim_blocks and lstrip_blocks). They can include, import and extend nothing.
//
// The package knows nothing of tokens, models or requests.
package template
