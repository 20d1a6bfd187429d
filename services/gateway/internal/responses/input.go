package responses

import (
	"strconv"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
)

// input is a text of the user, or a list of items.
type input struct {
	text  string
	items []item
}

// DecodeJSON implements strictjson.Value.
func (in *input) DecodeJSON(d *strictjson.Decoder) error {
	switch d.Kind() {
	case strictjson.String:
		return d.Decode(&in.text)
	case strictjson.Array:
		return d.Decode(&in.items)
	default:
		return d.Errorf("is %s: must be a string or a list of items", d.Kind())
	}
}

// item is an item of the conversation. Those without a type are messages.
type item struct {
	Type    string  `json:"type"`
	Role    string  `json:"role"`
	Content content `json:"content"`
	// ID and Status are those of an answer that is sent back, and mean nothing here.
	ID     *string `json:"id"`
	Status *string `json:"status"`
	Phase  *string `json:"phase"`

	// Fields of other types, so that an error names the item and not its fields.
	Summary          strictjson.Raw `json:"summary"`
	EncryptedContent strictjson.Raw `json:"encrypted_content"`
	CallID           strictjson.Raw `json:"call_id"`
	Name             strictjson.Raw `json:"name"`
	Namespace        strictjson.Raw `json:"namespace"`
	Arguments        strictjson.Raw `json:"arguments"`
	Input            strictjson.Raw `json:"input"`
	Output           strictjson.Raw `json:"output"`
	Action           strictjson.Raw `json:"action"`
	Tools            strictjson.Raw `json:"tools"`
}

// content is a text, or a list of parts.
type content struct {
	text  string
	parts []part
	set   bool
}

// DecodeJSON implements strictjson.Value.
func (c *content) DecodeJSON(d *strictjson.Decoder) error {
	c.set = true
	switch d.Kind() {
	case strictjson.String:
		return d.Decode(&c.text)
	case strictjson.Array:
		return d.Decode(&c.parts)
	default:
		return d.Errorf("is %s: must be a string or a list of parts", d.Kind())
	}
}

// part is a part of a content. Only parts of text are accepted.
type part struct {
	Type string  `json:"type"`
	Text *string `json:"text"`
	// Annotations and Logprobs are those of an answer that is sent back.
	Annotations strictjson.Raw `json:"annotations"`
	Logprobs    strictjson.Raw `json:"logprobs"`
	Breakpoint  strictjson.Raw `json:"prompt_cache_breakpoint"`

	// Fields of other types, so that an error names the part and not its fields.
	Refusal    strictjson.Raw `json:"refusal"`
	ImageURL   strictjson.Raw `json:"image_url"`
	Detail     strictjson.Raw `json:"detail"`
	FileID     strictjson.Raw `json:"file_id"`
	FileData   strictjson.Raw `json:"file_data"`
	FileURL    strictjson.Raw `json:"file_url"`
	Filename   strictjson.Raw `json:"filename"`
	InputAudio strictjson.Raw `json:"input_audio"`
}

// chat returns the contract's chat and the JSON path of each of its messages. Instructions and the
// messages of the system that follow each other are one message, because most templates accept only
// one, as the first.
func (r *request) chat(x *httpapi.Exchange) (*pb.Chat, []string, error) {
	all := &turns{}
	if r.Instructions != nil && *r.Instructions != "" {
		all.text("system", *r.Instructions, "instructions")
	}
	before := len(all.messages)
	if r.Input.items == nil && r.Input.text != "" {
		all.text("user", r.Input.text, "input")
	}
	for i := range r.Input.items {
		if err := all.item(x, &r.Input.items[i], i); err != nil {
			return nil, nil, err
		}
	}
	if len(all.messages) == before && len(r.Input.items) == 0 {
		return nil, nil, httpapi.Invalid("input", "is missing: send a text or a list of messages")
	}
	if len(all.messages) == 0 {
		return nil, nil, httpapi.Invalid("input", "has no message: send at least one")
	}
	return &pb.Chat{Messages: all.messages}, all.paths, nil
}

// message returns the role and the text of an item, or no role if the item is skipped.
func (in *item) message(x *httpapi.Exchange, path string) (role, text string, err error) {
	switch in.Type {
	case "", "message":
	case "reasoning", "additional_tools": // clients that spoke to other servers before send them
		return "", "", x.Skip(path)
	case "item_reference":
		return "", "", httpapi.Unsupported(path, "is a reference to a stored item, and the gateway stores nothing: send the item")
	default:
		return "", "", httpapi.Unsupported(path, "is an item of type %.32q, which is not supported: send messages, calls of functions and their outputs", in.Type)
	}
	switch in.Role {
	case "user", "assistant", "system":
		role = in.Role
	case "developer": // OpenAI's later name for system, which no template of the supported models has
		role = "system"
	case "":
		return "", "", httpapi.Invalid(path+".role", "is missing")
	default:
		return "", "", httpapi.Invalid(path+".role", "is %.32q: must be user, assistant, system or developer", in.Role)
	}
	if !in.Content.set {
		return "", "", httpapi.Invalid(path+".content", "is missing")
	}
	if in.Phase != nil {
		if err := x.Skip(path + ".phase"); err != nil {
			return "", "", err
		}
	}
	text, err = in.Content.join(x, path+".content")
	return role, text, err
}

// join returns the text. Parts are joined by line ends.
func (c *content) join(x *httpapi.Exchange, path string) (string, error) {
	if c.parts == nil {
		return c.text, nil
	}
	texts := make([]string, len(c.parts))
	for i, p := range c.parts {
		at := path + "[" + strconv.Itoa(i) + "]"
		switch p.Type {
		case "input_text", "output_text", "text":
		default:
			return "", httpapi.Unsupported(at, "is a part of type %.32q, which is not supported: the models read text only", p.Type)
		}
		if p.Text == nil {
			return "", httpapi.Invalid(at+".text", "is missing")
		}
		if p.Breakpoint != nil {
			if err := x.Skip(at + ".prompt_cache_breakpoint"); err != nil {
				return "", err
			}
		}
		texts[i] = *p.Text
	}
	return strings.Join(texts, "\n"), nil
}
