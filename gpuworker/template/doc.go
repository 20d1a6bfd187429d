// Package template renders the chat templates that come inside model files into prompts.
//
// Templates are Jinja, written by strangers, and treated as hostile. Package jinja evaluates them and bounds text, steps and
// recursion by itself; so that time and memory end too, a template lives in a child process of its own: this binary again,
// started with a hidden argument, without environment or files, under a limit on memory, and killed when its time is up.
// A binary that uses the package therefore calls MaybeChild before anything else in main, and a test binary in TestMain.
//
// New parses a template once and keeps its child; Render asks a child for a prompt, and starts another one if all are busy or the
// child had to be killed, or was killed or stopped by somebody else; Close ends them. Up to four small conversations and half as many
// large ones are rendered at once where there are processors, each kind by tenant. Rendering is a function of the
// template and the Input alone. Templates see what transformers shows them: messages, add_generation_prompt, bos_token,
// eos_token, tools and documents, which are none, and the functions raise_exception and strftime_now.
//
// A Prompt says which of its bytes the template wrote. Everything else came from the caller, and special tokens in it are text.
// Content is always the caller's; a role is, unless it is one of the usual ones, which some templates write into tokens.
//
// The package knows nothing of tokens, models or requests.
package template
