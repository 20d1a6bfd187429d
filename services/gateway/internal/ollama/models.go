package ollama

import (
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/version"
)

// greeting is what clients compare GET / with, letter by letter, to find a server of this API.
const greeting = "Ollama is running"

// apiVersion is the release of Ollama whose clients are served. Some require a least one.
const apiVersion = "0.12.0"

// greet answers GET /.
func (d *Dialect) greet(x *httpapi.Exchange) error {
	return x.Stream("text/plain; charset=utf-8").Write([]byte(greeting))
}

// version answers GET /api/version.
func (d *Dialect) version(x *httpapi.Exchange) error {
	return x.WriteJSON(struct {
		Version  string `json:"version"`
		Millrace string `json:"millrace"`
	}{apiVersion, version.String()})
}

// model is a model that serves. Those of GET /api/ps have the fields after Details as well.
type model struct {
	Name       string    `json:"name"`
	Model      string    `json:"model"`
	ModifiedAt time.Time `json:"modified_at"` // zero: model files have no date that is the same everywhere
	Size       uint64    `json:"size"`
	Digest     string    `json:"digest"`
	Details    details   `json:"details"`
	*residence
}

type residence struct {
	ExpiresAt     time.Time `json:"expires_at"`
	SizeVRAM      uint64    `json:"size_vram"`
	ContextLength uint32    `json:"context_length"`
}

type details struct {
	ParentModel       string   `json:"parent_model"`
	Format            string   `json:"format"`
	Family            string   `json:"family"`
	Families          []string `json:"families"`
	ParameterSize     string   `json:"parameter_size"`
	QuantizationLevel string   `json:"quantization_level"`
}

type modelList struct {
	Models []model `json:"models"`
}

// never is when a model expires: clients do not decide it.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

func detailsOf(c *pb.ModelCapabilities) details {
	size := ""
	if n := c.GetParameters(); n > 0 {
		unit, letter := 1e6, "M"
		if n >= 1e9 {
			unit, letter = 1e9, "B"
		}
		size = strconv.FormatFloat(float64(n)/unit, 'f', 1, 64) + letter
	}
	return details{
		Format: "gguf", Family: c.GetArchitecture(), Families: []string{c.GetArchitecture()}, ParameterSize: size, QuantizationLevel: c.GetQuantisation(),
	}
}

// list returns the models that serve.
func (d *Dialect) list(x *httpapi.Exchange, resident bool) (modelList, error) {
	all, err := d.client.Models(x.Context())
	if err != nil {
		return modelList{}, err
	}
	out := modelList{[]model{}}
	for _, m := range all {
		if m.GetState() != pb.ModelState_MODEL_STATE_READY {
			continue
		}
		entry := model{
			Name: m.GetName(), Model: m.GetName(), Size: m.GetFileBytes(), Digest: m.GetModelDigest(), Details: detailsOf(m.GetCapabilities()),
		}
		if loaded := m.GetLoaded(); resident {
			entry.Size = loaded.GetDeviceBytes()
			entry.residence = &residence{never, loaded.GetDeviceBytes(), loaded.GetContextLength()}
		}
		out.Models = append(out.Models, entry)
	}
	return out, nil
}

// listModels answers GET /api/tags.
func (d *Dialect) listModels(x *httpapi.Exchange) error {
	out, err := d.list(x, false)
	if err != nil {
		return err
	}
	return x.WriteJSON(out)
}

// listLoaded answers GET /api/ps.
func (d *Dialect) listLoaded(x *httpapi.Exchange) error {
	out, err := d.list(x, true)
	if err != nil {
		return err
	}
	return x.WriteJSON(out)
}

// find returns a model that serves.
func (d *Dialect) find(x *httpapi.Exchange, model string) (*pb.ModelInfo, error) {
	all, err := d.client.Models(x.Context())
	if err != nil {
		return nil, err
	}
	f := httpapi.Refuse(codes.NotFound, "model", "there is no model %.128q: GET /api/tags lists the models", model)
	f.Reason = reason.UnknownModel
	for _, m := range all {
		switch {
		case m.GetName() != name(model):
		case m.GetState() == pb.ModelState_MODEL_STATE_READY:
			return m, nil
		default:
			f = httpapi.Refuse(codes.NotFound, "model", "the model %.128q is not loaded: millrace load loads it", model)
			f.Reason = reason.ModelNotLoaded
		}
	}
	return nil, f
}

// showRequest is the body of POST /api/show. Name is the older name of Model.
type showRequest struct {
	Model   string `json:"model"`
	Name    string `json:"name"`
	Verbose *bool  `json:"verbose"`

	// Skipped.
	System   strictjson.Raw `json:"system"`
	Template strictjson.Raw `json:"template"`
	Options  strictjson.Raw `json:"options"`
}

type showAnswer struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"`
	Template     string         `json:"template"`
	Details      details        `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	ModifiedAt   time.Time      `json:"modified_at"`
}

// show answers POST /api/show.
func (d *Dialect) show(x *httpapi.Exchange) error {
	var r showRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	if r.Model == "" {
		r.Model = r.Name
	}
	if r.Model == "" {
		return httpapi.Invalid("model", "is missing: GET /api/tags lists the models")
	}
	if err := translate.Skip(x,
		translate.Field{Param: "system", Set: r.System != nil}, translate.Field{Param: "template", Set: r.Template != nil},
		translate.Field{Param: "options", Set: r.Options != nil},
	); err != nil {
		return err
	}
	m, err := d.find(x, r.Model)
	if err != nil {
		return err
	}
	c := m.GetCapabilities()
	return x.WriteJSON(showAnswer{
		Details: detailsOf(c), Capabilities: abilitiesOf(c), ModelInfo: map[string]any{
			"general.architecture": c.GetArchitecture(), "general.parameter_count": c.GetParameters(),
			c.GetArchitecture() + ".context_length": m.GetLoaded().GetContextLength(), c.GetArchitecture() + ".vocab_size": c.GetVocabulary(),
		},
	})
}

// abilitiesOf returns the capabilities of a model, by Ollama's names.
func abilitiesOf(c *pb.ModelCapabilities) []string {
	abilities := []string{}
	if !c.GetRerankOnly() {
		abilities = append(abilities, "completion")
	}
	if c.GetPooling() != pb.Pooling_POOLING_UNSPECIFIED {
		abilities = append(abilities, "embedding")
	}
	return abilities
}
