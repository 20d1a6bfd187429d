package openai

import (
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/reason"
)

// model is a model that serves.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // 0: model files have no date that is the same everywhere
	OwnedBy string `json:"owned_by"`
	// MaxModelLen is vLLM's name for the longest context.
	MaxModelLen uint32      `json:"max_model_len,omitempty"`
	Millrace    modelOrigin `json:"millrace"`
}

type modelOrigin struct {
	ModelDigest  string `json:"model_digest"`
	Architecture string `json:"architecture"`
	Quantisation string `json:"quantisation"`
	Workers      int    `json:"workers"`
}

type modelList struct {
	Object string  `json:"object"`
	Data   []model `json:"data"`
}

func modelOf(m *pb.ModelInfo) model {
	return model{
		ID: m.GetName(), Object: "model", OwnedBy: "millrace", MaxModelLen: m.GetLoaded().GetContextLength(), Millrace: modelOrigin{
			ModelDigest: m.GetModelDigest(), Architecture: m.GetCapabilities().GetArchitecture(),
			Quantisation: m.GetCapabilities().GetQuantisation(), Workers: len(m.GetWorkerIds()),
		},
	}
}

// listModels answers GET /v1/models with the models that serve.
func (d *Dialect) listModels(x *httpapi.Exchange) error {
	all, err := d.client.Models(x.Context())
	if err != nil {
		return err
	}
	list := modelList{Object: "list", Data: []model{}}
	for _, m := range all {
		if m.GetState() == pb.ModelState_MODEL_STATE_READY {
			list.Data = append(list.Data, modelOf(m))
		}
	}
	return x.WriteJSON(list)
}

// getModel answers GET /v1/models/{id}, whose id may have slashes.
func (d *Dialect) getModel(x *httpapi.Exchange) error {
	id := x.Request.PathValue("id")
	all, err := d.client.Models(x.Context())
	if err != nil {
		return err
	}
	f := httpapi.Refuse(codes.NotFound, "id", "there is no model %.128q: GET /v1/models lists the models", id)
	f.Reason = reason.UnknownModel
	for _, m := range all {
		if m.GetName() != id {
			continue
		}
		if m.GetState() == pb.ModelState_MODEL_STATE_READY {
			return x.WriteJSON(modelOf(m))
		}
		f = httpapi.Refuse(codes.NotFound, "id", "the model %.128q is not loaded: millrace load loads it", id)
		f.Reason = reason.ModelNotLoaded
	}
	return f
}
