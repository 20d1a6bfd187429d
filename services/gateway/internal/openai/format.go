package openai

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// schemaPath is the field of a response_format's schema.
const schemaPath = "response_format.json_schema.schema"

// responseFormat is the shape of an answer; the schema lies in a field of its own.
type responseFormat struct {
	Type       string       `json:"type"`
	JSONSchema *namedSchema `json:"json_schema"`
}

type namedSchema struct {
	Name        *string        `json:"name"`
	Description *string        `json:"description"`
	Schema      strictjson.Raw `json:"schema"`
	Strict      *bool          `json:"strict"`
}

// structuredOutputs is vLLM's constraint. One field is set.
type structuredOutputs struct {
	JSON       strictjson.Raw `json:"json"`
	JSONObject *bool          `json:"json_object"`
	Regex      *string        `json:"regex"`
	Choice     []string       `json:"choice"`
	Grammar    *string        `json:"grammar"`
}

// guided returns the contract's constraint, nil if the request has none.
func (p *parameters) guided() (*pb.Guided, error) {
	const both = "structured_outputs"
	format := translate.Format{Type: "text"}
	if f := p.ResponseFormat; f != nil {
		if format.Type = f.Type; f.JSONSchema != nil {
			format.Schema, format.Strict = f.JSONSchema.Schema, f.JSONSchema.Strict
		}
	}
	guided, err := format.Guided("response_format.type", schemaPath)
	if err != nil || p.StructuredOutputs == nil {
		return guided, err
	}
	all := p.StructuredOutputs.constraints()
	if guided != nil || len(all) != 1 {
		return nil, httpapi.Invalid(both, "must have one of json, json_object, regex, choice and grammar, without a response_format")
	}
	return all[0], nil
}

func (s *structuredOutputs) constraints() (all []*pb.Guided) {
	if s.JSON != nil {
		all = append(all, translate.JSON(string(s.JSON)))
	}
	if s.JSONObject != nil && *s.JSONObject {
		all = append(all, translate.JSON(translate.AnyObject))
	}
	if s.Regex != nil {
		all = append(all, &pb.Guided{Constraint: &pb.Guided_Regex{Regex: *s.Regex}})
	}
	if s.Choice != nil {
		all = append(all, &pb.Guided{Constraint: &pb.Guided_Choice{Choice: &pb.Choice{Options: s.Choice}}})
	}
	if s.Grammar != nil {
		all = append(all, &pb.Guided{Constraint: &pb.Guided_Grammar{Grammar: *s.Grammar}})
	}
	return all
}
