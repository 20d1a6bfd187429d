// Package template renders the chat templates of model files into prompts.
//
// Templates are Jinja programs of unknown authors and treated as hostile. Package jinja evaluates
// them and bounds text, steps and recursion. To bound time and memory too, a template runs in a
// child process of its own: this binary again, started with a hidden argument, without environment
// or files, under a memory limit, and killed at its timeout. A binary that uses the package must
// therefore call MaybeChild before anything else in main, and a test binary in TestMain.
//
// New parses a template and keeps its child. Render requests a prompt from a child. It starts
// another one if all are busy, or if the child was killed or stopped. Close ends them. At most four
// small conversations and half as many large ones are rendered at once, fairly by tenant. Rendering
// depends on the template and the Input alone. Templates see the variables that transformers gives
// them: messages, add_generation_prompt, bos_token, eos_token, tools, documents (always none), and
// the functions raise_exception and strftime_now.
//
// A Prompt states which of its bytes the template wrote. The others came from the caller, and
// special tokens in them are text. Message content is always the caller's. So is a role, unless it
// is one of the usual ones, which some templates turn into tokens.
package template
