GRANT SELECT ON {{inbox}} TO {{role}};
