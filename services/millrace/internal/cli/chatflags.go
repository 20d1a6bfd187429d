package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
)

// chatFlags adds the flags of how a chat template renders, which fill chat.
func chatFlags(fs *pflag.FlagSet, chat *pb.Chat) {
	fs.Var(templateArgs{chat}, "template-arg", "variable of the chat template, as name=JSON, such as enable_thinking=false; may be given several times")
	fs.Var(toolsFile{chat}, "tools", "functions that the model may call, a JSON `file` as OpenAI's API has them; calls are printed as name(arguments)")
	protoflags.RegisterAs(fs, chat, "tool_format", "tool-format", "how the model writes calls (unset: as the chat template shows)")
	protoflags.Register(fs, chat, map[string]string{"reasoning_budget": "most tokens of reasoning; 0 is none (unset: no bound)"})
	protoflags.RegisterAs(fs, chat, "template_name", "template", "chat template to use, of those that millrace models lists (unset: the model's default one)")
	protoflags.Register(fs, chat, map[string]string{
		"parse_special_in_content": "recognise special tokens in messages too, which lets a message forge turns (unset: false)",
	})
}

// asMessage is a conversation of one message of the user.
func asMessage(chat *pb.Chat, text string) *pb.Chat {
	chat = proto.CloneOf(chat)
	chat.Messages = []*pb.ChatMessage{{Role: "user", Content: text}}
	return chat
}

// onlyWithChat refuses the flags of chatFlags where nothing is rendered.
func onlyWithChat(fs *pflag.FlagSet) error {
	for _, name := range []string{"template-arg", "template", "parse-special-in-content", "tools", "tool-format", "reasoning-budget"} {
		if fs.Changed(name) {
			return failure.Usagef("--%s needs --chat: without it no chat template is used", name)
		}
	}
	return nil
}

// templateArgs is --template-arg, one variable at a time.
type templateArgs struct{ chat *pb.Chat }

func (templateArgs) String() string { return "" }
func (templateArgs) Type() string   { return "name=json" }

func (a templateArgs) Set(text string) error {
	name, raw, found := strings.Cut(text, "=")
	if name = strings.TrimSpace(name); !found || name == "" {
		return fmt.Errorf("%w: %q is not name=JSON", protoflags.ErrValue, text)
	}
	v := &structpb.Value{}
	if err := protojson.Unmarshal([]byte(raw), v); err != nil {
		return fmt.Errorf("%w: %q is not JSON: a text needs quotes, as in --template-arg '%s=\"low\"'", protoflags.ErrValue, raw, name)
	}
	if a.chat.TemplateKwargs == nil {
		a.chat.TemplateKwargs = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	a.chat.TemplateKwargs.Fields[name] = v
	return nil
}
