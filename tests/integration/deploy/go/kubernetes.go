package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// The operator of Prometheus has its own types, so only the head of its objects is read.
type foreign struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            map[string]any `json:"spec"`
}

var kinds = map[string]func() any{
	"v1/ConfigMap":                            func() any { return &core.ConfigMap{} },
	"v1/Service":                              func() any { return &core.Service{} },
	"apps/v1/StatefulSet":                     func() any { return &apps.StatefulSet{} },
	"policy/v1/PodDisruptionBudget":           func() any { return &policy.PodDisruptionBudget{} },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return &foreign{} },
}

// readKubernetes refuses fields that a type does not have, and values of another type.
func readKubernetes(path string) ([]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader := documents.NewYAMLReader(bufio.NewReader(file))
	var found []any
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var head foreign
		if err := yaml.Unmarshal(document, &head); err != nil {
			return nil, err
		}
		if head.Kind == "" {
			continue
		}
		kind := head.APIVersion + "/" + head.Kind
		make, known := kinds[kind]
		if !known {
			return nil, fmt.Errorf("%s is not expected", kind)
		}
		object := make()
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, head.Name, err)
		}
		found = append(found, object)
	}
}
